"""Measures whether a new pod gets to compute, as a Job would try it, and what Kubernetes' events tell of a pod."""

import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from localcluster.kubectl import CommandError
from measurements.gpu.stack.suites.speed import costs
from measurements.peers.ways.way import Clients
from tests.cluster.harness import event_version

SERVE_SECONDS = 45
REPAIR_SECONDS = 90
"""A daemon's pod that is replaced may take 30 s to end, and the next one starts after it."""
AGAIN_SECONDS = 1.0
OF_KUBERNETES = ("kubelet", "default-scheduler", "scheduler")


@dataclass(frozen=True)
class Served:
    """`seconds` until a kernel had run; None: not within `limit`. `tries`: pods that it took. The rest: what CUDA
    showed the program."""

    seconds: float | None
    tries: int
    last_error: str
    limit: float
    sms: int | None = None
    free_mib: int | None = None

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        limit = fields.pop("limit")
        return fields | ({} if self.seconds is not None else {"not_within_seconds": limit})


def served(tenant: Clients, name: str, counted_from: float | None = None, limit: float = SERVE_SECONDS) -> Served:
    """Starts pods until one of them has run a kernel. `counted_from`: time.monotonic() of what came before. `limit`:
    seconds from then on.
    """
    began = time.monotonic() if counted_from is None else counted_from
    end, tries, error = began + limit, 0, ""
    while time.monotonic() < end:
        tries += 1
        pod = f"{name}-{tries}"
        tenant.start(tenant.pod(pod, command=[sys.executable, "-c", costs.FIRST_KERNEL]))
        while time.monotonic() < end:
            if computed := tenant.events_of(pod, "computed"):
                seconds, view = round(time.monotonic() - began, 2), computed[0]
                return Served(seconds, tries, error, limit, view["sms"], view["free_mib"])
            status = tenant.kubectl.get("pod", pod)["status"]
            if status.get("phase") == "Failed":
                error = _why(tenant, pod, status)
                break
            time.sleep(0.25)
        time.sleep(AGAIN_SECONDS)
    return Served(None, tries, error, limit)


def observer(tenant: Clients, name: str) -> list[str]:
    """Reasons of the events about a pod that came from others than Kubernetes itself."""
    return sorted({event["reason"] for event in tenant.kubernetes_events(name) if not _by_kubernetes(event)})


Told = dict[tuple[str, str], str]
"""The events that were told, by the event's UID and version: an event that is counted up gets a new version."""


def told(tenant: Clients) -> Told:
    """Events in the whole cluster that came from others than Kubernetes itself: kind of object, and reason."""
    events = tenant.harness.kubectl.items("events", "--all-namespaces")
    return {
        event_version(event): f"{event['involvedObject']['kind']}: {event['reason']}"
        for event in events
        if not _by_kubernetes(event)
    }


def since(before: Told, now: Told) -> list[str]:
    return sorted({text for version, text in now.items() if version not in before})


def _by_kubernetes(event: dict[str, Any]) -> bool:
    reporter = str(event.get("reportingComponent") or event.get("source", {}).get("component", ""))
    return reporter in OF_KUBERNETES or reporter.endswith("controller") or reporter == ""


def _why(tenant: Clients, pod: str, status: dict[str, Any]) -> str:
    """The last line that the program wrote, or the kubelet's reason."""
    try:
        line = tenant.kubectl("logs", pod, "--tail=1").strip()
    except CommandError:
        line = ""
    return line[-200:] or f"{status.get('reason', '')}: {status.get('message', '')}"[:200]
