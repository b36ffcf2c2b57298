"""More pods at once than the node has places: how long until it is full, which GPUs they are on, and who waits.

The pods do nothing. Which GPU a pod is on is the kubelet's record (`placement`). Seconds are those of Kubernetes, of
the pods' metadata and status: whole ones.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from localcluster.kubectl import Object
from measurements.gpu.stack.suites import parts
from measurements.peers import placement
from measurements.peers.placement import Reading
from measurements.peers.ways.way import IDLE, Clients, Gpus, Way, clients
from measurements.scale.results import idle_percent, processor_ticks
from tests.cluster.harness import Harness, condition, has_container

PER_GPU, BEYOND = 25, 8
"""Clients of each GPU, and pods more than there are places."""
LEAVING = 20
"""Pods of one GPU that are deleted from the full node."""
POLL_SECONDS, SETTLE_SECONDS = 1.0, 10.0
QUIET_PERCENT, QUIET_STEP_SECONDS, QUIET_SECONDS = 80, 5, 90
FULL_SECONDS, REFILLED_SECONDS, DELETED_SECONDS = 240, 120, 240


def measure(harness: Harness, way: Way, gpus: Gpus) -> dict[str, Any]:
    """`gpus`: as the way offers them."""
    idle = _quiet()
    with clients(harness, way) as tenant:
        pods = [tenant.pod(f"burst-{number}", command=IDLE) for number in range(gpus.places + BEYOND)]
        readings: list[Reading] = []
        with ThreadPoolExecutor(1) as creating:
            created = creating.submit(tenant.start, *pods)
            _wait(tenant, readings, lambda pods: created.done() and len(_started(pods)) >= gpus.places, FULL_SECONDS)
            created.result()
        full = _settled(tenant, readings)
        figures = {
            "idle_percent_before": idle,
            "gpus": gpus.count,
            "places_on_each_gpu": gpus.clients,
            "pods": len(pods),
            "seconds": seconds(full),
            "until_full": placement.evenness(readings, gpus.count, gpus.clients).as_json(),
            "full": _state(readings[-1], full, gpus),
            "after_deletion": _refill(tenant, readings[-1], gpus, before=full),
        }
        tenant.kubectl.delete("pods", "--all", "--grace-period=1", seconds=DELETED_SECONDS)
        return figures


def _quiet() -> int:
    """Percent of the cores' time that nobody uses, once that is most of it again, or after QUIET_SECONDS."""
    end = time.monotonic() + QUIET_SECONDS
    while True:
        before = processor_ticks()
        time.sleep(QUIET_STEP_SECONDS)
        idle = idle_percent(before)
        if idle > QUIET_PERCENT or time.monotonic() > end:
            return idle


def seconds(pods: Sequence[Object]) -> dict[str, Any]:
    """Seconds from the creation of the first pod until the last that has a place was created, bound to the node, and
    started.

    `of_a_pod`: from its own creation until its container started.
    """
    served = _started(pods)
    first = min(_created(pod) for pod in pods)
    return {
        "all_created": round(max(map(_created, pods)) - first),
        "all_scheduled": round(max(map(_scheduled, served)) - first),
        "all_started": round(max(map(_start, served)) - first),
        "of_a_pod": parts.spread([_start(pod) - _created(pod) for pod in served]),
    }


def _refill(tenant: Clients, full: Reading, gpus: Gpus, before: Sequence[Object]) -> dict[str, Any]:
    """Deletes pods of one GPU, until those that wait have started: only there is room for them."""
    gpu = min(full.values())
    leaving = sorted(name for name, its_gpu in full.items() if its_gpu == gpu)[:LEAVING]
    waited = {pod["metadata"]["name"] for pod in _waiting(before)}
    readings: list[Reading] = []
    began = time.time()
    tenant.kubectl.delete("pods", *leaving, "--grace-period=1", wait=False)
    _wait(tenant, readings, lambda pods: waited <= {_name(pod) for pod in _started(pods)}, REFILLED_SECONDS)
    pods = _settled(tenant, readings)
    newcomers = [pod for pod in pods if _name(pod) in waited]
    return {
        "deleted": len(leaving),
        "waiting_pods_started": len(_started(newcomers)),
        "on_the_gpu_with_room": sum(readings[-1].get(_name(pod)) == gpu for pod in newcomers),
        "seconds": round(max(map(_start, _started(newcomers))) - began) if _started(newcomers) else None,
        "overpacked": placement.evenness(readings, gpus.count, gpus.clients).overpacked,
        **_state(readings[-1], pods, gpus),
    }


def _state(reading: Reading, pods: Sequence[Object], gpus: Gpus) -> dict[str, Any]:
    """`failed`: the kubelet rejects a pod for good that it has no place for."""
    failed = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
    by_gpu = placement.pods_by_gpu(reading, gpus.count)
    return {"pods_by_gpu": by_gpu, "waiting": len(_waiting(pods)), "failed": len(failed)}


def _wait(tenant: Clients, readings: list[Reading], done: Callable[[list[Object]], bool], limit: float) -> None:
    """Reads until `done` of the namespace's pods, or for `limit` seconds: the figures tell what is missing then."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        readings.append(placement.read(tenant.harness, tenant.name))
        if done(tenant.pods()):
            return
        time.sleep(POLL_SECONDS)


def _settled(tenant: Clients, readings: list[Reading]) -> list[Object]:
    """The pods after some time in which one that should wait could have been placed."""
    _wait(tenant, readings, lambda _: False, SETTLE_SECONDS)
    readings.append(placement.read(tenant.harness, tenant.name))
    return tenant.pods()


def _started(pods: Sequence[Object]) -> list[Object]:
    return [pod for pod in pods if has_container(pod)]


def _waiting(pods: Sequence[Object]) -> list[Object]:
    return [pod for pod in pods if condition(pod, "PodScheduled").get("status") != "True"]


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def _created(pod: Object) -> float:
    return _time(pod["metadata"]["creationTimestamp"])


def _scheduled(pod: Object) -> float:
    return _time(condition(pod, "PodScheduled")["lastTransitionTime"])


def _start(pod: Object) -> float:
    return _time(pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
