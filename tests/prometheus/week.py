"""A week of five shares, each with something to say, and the objects that the cluster has of them now."""

from typing import Any

from tests.prometheus.recorded import Recorded, always, during, of_container

GPU_MIB = 143155
ROOMY, SHORT, CHANGED, CLASSED = "GPU-roomy", "GPU-short", "GPU-changed", "GPU-classed"


def spec(per_gpu: int, memory: str, threads: int, **more: Any) -> dict[str, Any]:
    clients = {"perGpu": per_gpu, "threads": {"default": threads, "max": threads}, "memory": {"default": memory}}
    return {"clients": clients | more}


SHARES = {
    "roomy": spec(8, "8Gi", 25),
    "short": spec(4, "16Gi", 25),
    "changed": spec(4, "8Gi", 25),
    "unseen": spec(4, "8Gi", 25),
    "classed": spec(3, "16Gi", 33, classes={}),
}


def shares() -> list[dict[str, Any]]:
    named = {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuShare"}
    return [{**named, "metadata": {"name": name}, "spec": of} for name, of in SHARES.items()]


def gpu_node() -> dict[str, Any]:
    gpu = {"index": 0, "minor": 0, "product": "NVIDIA H200", "memoryMib": GPU_MIB, "sms": 132, "computeMode": "Default"}
    owners = {ROOMY: "roomy", SHORT: "short", CHANGED: "changed", CLASSED: "classed"}
    return {
        "apiVersion": "gpushare.dev/v1alpha1",
        "kind": "GpuNode",
        "metadata": {"name": "n1"},
        "spec": {"assignments": [{"uuid": uuid, "share": share} for uuid, share in owners.items()]},
        "status": {"clientCeiling": 48, "gpus": [gpu | {"uuid": uuid} for uuid in owners]},
    }


def slots(share: str, uuid: str, per_gpu: Any, held: Any) -> list[Recorded]:
    where = {"share": share, "uuid": uuid}
    return [Recorded("gpushare_slots", where, per_gpu), Recorded("gpushare_slots_held", where, held)]


def activity(pod: str, of_class: str, active: float, launches: float) -> list[Recorded]:
    """What a container says of itself. `active`: the part of its time. `launches`: in the week."""
    where = {"namespace": "ml", "pod": pod, "container": "app", "share": "classed", "uuid": CLASSED, "class": of_class}
    return [
        Recorded("gpushare_container_active_seconds_total", where, lambda at: at * 7 * 86400 * active),
        Recorded("gpushare_container_launches_total", where, lambda at: at * launches),
    ]


def week() -> list[Recorded]:
    """roomy: 3 of 8 slots at most, 3000 MiB at most for a few minutes. short: full half of the time, at 30 % busy; the
    Job `crash` is there at each of three faults and not otherwise. changed: perGpu was 8 until a few hours ago.
    classed: beside a service `train` works most of the time and `idle` never does.
    """
    peak = during(0.62, 0.621, 3000)
    series = [
        Recorded("gpushare_build_info", {"version": "1", "part": "agent"}, always(1)),
        *slots("roomy", ROOMY, always(8), lambda at: 3 if 0.3 < at < 0.4 else 2),
        *of_container("roomy", ROOMY, "serve-5d4f7b9c8d-x2k4p", lambda at: peak(at) or 2000, 8192, 25),
        *of_container("roomy", ROOMY, "serve-5d4f7b9c8d-b7q9z", always(1800), 8192, 25),
        *of_container("roomy", ROOMY, "batch-0", during(0.3, 0.4, 1500), 8192, 25),
        *slots("short", SHORT, always(4), lambda at: 4 if at % 0.1 < 0.05 else 2),
        Recorded("gpushare_gpu_utilization_ratio", {"uuid": SHORT}, lambda at: 0.3 if at % 0.1 < 0.05 else 0.9),
        *slots("changed", CHANGED, lambda at: 8 if at < 0.98 else 4, always(1)),
    ]
    series += slots("classed", CLASSED, always(3), always(3))
    for pod, of_class, active, launches in (
        ("serve-0", "Protected", 0.3, 1e7),
        ("train-0", "Normal", 0.75, 1e6),
        ("idle-0", "Normal", 0.0, 0.0),
    ):
        series += of_container("classed", CLASSED, pod, always(15000), 16384, 33)
        series += activity(pod, of_class, active, launches)
    for number in range(2):
        series += of_container("short", SHORT, f"server-{number}", always(14500), 16384, 25)
    for number, begin in enumerate((0.11, 0.43, 0.77)):
        series += of_container(
            "short", SHORT, f"crash-{'bcd'[number]}4x7z", during(begin, begin + 0.02, 900), 16384, 25
        )
    series.append(
        Recorded(
            "gpushare_gpu_faults_total",
            {"share": "short", "uuid": SHORT},
            lambda at: sum(at >= begin + 0.019 for begin in (0.11, 0.43, 0.77)),
        )
    )
    return series
