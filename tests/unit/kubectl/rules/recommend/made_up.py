"""Histories of one share, of which a test says only what it is about."""

from typing import Any

from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.rules.recommend.history import (
    ContainerPast,
    FaultSeen,
    GpuPast,
    HistorySource,
    Observed,
    ShareHistory,
)

STEP = 300.0
DAY = 86400.0
GPU_MIB = 81_559


def share(per_gpu: int = 4, memory: str = "16Gi", threads: int = 100, **more: Any) -> GpuShare:
    """`more`: overcommit, max and limits of memory, processes, queue, delivery."""
    grant = {"default": memory} | {key: more[key] for key in ("overcommit", "max", "limits") if key in more}
    clients = {"perGpu": per_gpu, "memory": grant, "threads": {"default": threads, "max": threads}}
    clients |= {key: more[key] for key in ("processes", "queue") if key in more}
    spec = {"clients": clients} | {key: more[key] for key in ("delivery",) if key in more}
    return GpuShare.model_validate({"metadata": {"name": "team"}, "spec": spec})


def seen(days: float, part: float = 1.0) -> Observed:
    """A client seen for so many days before the end, in this part of the samples."""
    return Observed(round(days * DAY / STEP * part), 7 * DAY - days * DAY)


def gpu(held: int = 4, uuid: str = "GPU-0", **more: Any) -> GpuPast:
    values: dict[str, Any] = {"memory_mib": GPU_MIB, "client_ceiling": 48, "samples": 2016, "full": 0} | more
    return GpuPast(uuid=uuid, held_most=held, **values)


def container(most: int, granted: int | None = 16384, pod: str = "app", **more: Any) -> ContainerPast:
    values: dict[str, Any] = {
        "namespace": "ml",
        "container": "main",
        "uuid": "GPU-0",
        "samples": 2016,
        "memory_p95": most,
    } | more
    return ContainerPast(pod=pod, memory_most=most, granted=granted, **values)


def fault(at: float, *present: str, uuid: str = "GPU-0") -> FaultSeen:
    return FaultSeen(uuid, at, frozenset(present))


def history(of: GpuShare | None = None, days: float = 7, **more: Any) -> ShareHistory:
    """A week of Prometheus, `days` of which the share was seen; four of four slots held now and then."""
    values: dict[str, Any] = {
        "source": HistorySource.PROMETHEUS,
        "step": STEP,
        "clients": seen(days),
        "defaults": seen(days),
        "gpus": [gpu()],
    } | more
    return ShareHistory(share=of or share(), begin=0.0, end=7 * DAY, **values)
