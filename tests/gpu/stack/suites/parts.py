"""What several suites need."""

import time
from collections.abc import Sequence
from typing import Any

from gpushare_workload.bench.results.statistics import Spread
from tests.cluster.harness import POLL, Tenant

TOLD_SECONDS = 15


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, median, largest; in the unit of `values`, of which there is at least one."""
    return {name: round(value, 2) for name, value in Spread.of(values).as_json().items()}


def alive(tenant: Tenant, names: Sequence[str]) -> list[str]:
    """Those of these pods that run as they were started."""
    return [
        pod["metadata"]["name"]
        for pod in tenant.running()
        if pod["metadata"]["name"] in names and not any(it["restartCount"] for it in pod["status"]["containerStatuses"])
    ]


def errors(tenant: Tenant, names: Sequence[str]) -> list[int]:
    """The CUDA errors that these clients told of."""
    return sorted({line["code"] for name in names for line in tenant.events_of(name, "gpu-error")})


def ended_in_order(tenant: Tenant, name: str) -> bool:
    """Whether an event says that the pod's client was ended through the daemon; it may come after the pod's end."""
    end = time.monotonic() + TOLD_SECONDS
    while time.monotonic() < end:
        if "ClientTerminated" in reasons(tenant, name):
            return True
        time.sleep(POLL)
    return False


def reasons(tenant: Tenant, name: str) -> dict[str, str]:
    """What was told of a pod by our own parts: the reason of each event, and its note."""
    told = tenant.kubernetes_events(name)
    return {it["reason"]: it["message"] for it in told if is_ours(it)}


def is_ours(event: dict[str, Any]) -> bool:
    """Whether a part of gpushare told it."""
    reporter = event.get("reportingComponent") or event.get("source", {}).get("component", "")
    return str(reporter).startswith("gpushare")
