"""An agent's metrics as rows of the page: each GPU's utilisation over the last minutes, its free memory, and its
clients. Pure.

Keys: figures/UUID. Memory is in MiB; utilisation in percent; moments are seconds since 1970.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gpushare.api.quantity import MIB
from gpushare.kubectl.page.content.feed import Row
from gpushare.kubectl.views.top import (
    ACTIVE,
    BORROWED,
    CONTAINER,
    GRANTED,
    LIMIT,
    PROCESSES,
    PROCESSES_GRANTED,
    SHOWN,
    THREADS,
    USED,
)

UTILIZATION = "gpushare_gpu_utilization_ratio"
AGE = "gpushare_gpu_reading_age_seconds"
FREE = "gpushare_gpu_memory_free_bytes"
SHORT = "gpushare_gpu_memory_short_bytes"
OF_GPU = (UTILIZATION, AGE, FREE, SHORT)
READ = (*SHOWN, *OF_GPU)
HISTORY_SECONDS = 300
STALE_SECONDS = 30.0
"""A reading of NVML that is older says nothing about now."""


class FigureHistory:
    """The readings of all GPUs over HISTORY_SECONDS. Not safe to use from several threads."""

    def __init__(self) -> None:
        self._utilization: dict[str, deque[tuple[int, int]]] = defaultdict(deque)

    def rows(self, node: str, text: str, now: float) -> dict[str, Row]:
        """`text`: of the agent of `node`, read at `now`. Raises ValueError or
        OverflowError for what are no metrics."""
        gpus: dict[str, dict[str, float]] = defaultdict(dict)
        clients: dict[str, dict[tuple[str, ...], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        classes: dict[tuple[str, ...], str] = {}
        for name, labels, value in _samples(text):
            uuid = labels.get("uuid", "")
            if name in OF_GPU:
                gpus[uuid][name] = value
            else:
                where = tuple(labels.get(label, "") for label in CONTAINER)
                clients[uuid][where][name] = value
                if labels.get("class"):
                    classes[where] = labels["class"]
        figures: dict[str, Row] = {}
        for uuid in sorted({*gpus, *clients}):
            history, gpu = self._utilization[uuid], gpus[uuid]
            fresh = gpu.get(AGE, 0.0) < STALE_SECONDS
            if fresh and UTILIZATION in gpu:
                history.append((int(now), round(100 * gpu[UTILIZATION])))
            while history and history[0][0] < now - HISTORY_SECONDS:
                history.popleft()
            figures[f"figures/{uuid}"] = {
                "uuid": uuid,
                "node": node,
                "at": int(now),
                "utilization": history[-1][1] if fresh and UTILIZATION in gpu else None,
                "free": _mib(gpu, FREE) if fresh else None,
                "short": _mib(gpu, SHORT) if fresh else None,
                "history": [list(point) for point in history],
                "clients": [
                    _client(labels, values, classes.get(labels, "")) for labels, values in sorted(clients[uuid].items())
                ],
            }
        return figures


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """The samples of READ alone: the parser takes most of the time, and an agent has some 160 other series of its
    own."""
    wanted = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(READ))
    for family in text_string_to_metric_families(wanted):
        for sample in family.samples:
            if sample.name in READ:
                yield sample.name, sample.labels, sample.value


def _client(labels: tuple[str, ...], values: dict[str, float], client_class: str) -> dict[str, Any]:
    namespace, pod, container, share, _ = labels
    threads, allowed = values.get(THREADS), values.get(PROCESSES_GRANTED)
    return {
        "namespace": namespace,
        "pod": pod,
        "container": container,
        "share": share,
        "used": int(values.get(USED, 0)) // MIB,
        "granted": _mib(values, GRANTED),
        "limit": _mib(values, LIMIT),
        "borrowed": _mib(values, BORROWED),
        "processes": int(values.get(PROCESSES, 0)),
        "allowed": None if allowed is None else int(allowed),
        "threads": None if threads is None else round(100 * threads),
        "class": client_class,
        "active": round(values[ACTIVE]) if ACTIVE in values else None,
    }


def _mib(values: Mapping[str, float], name: str) -> int | None:
    """The MiB of a metric in bytes; None: there is none."""
    return int(values[name]) // MIB if name in values else None
