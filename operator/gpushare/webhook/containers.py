"""The containers of a pod: the place of each in the pod, and what it asks of gpushare."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpushare.api.names import GROUP, MPS_RESOURCE, PRE_STOP_PROGRAM
from gpushare.webhook.review import listed, mapped

Hook = dict[str, Any]
"""A lifecycle handler of Kubernetes."""
_SLOT_PREFIX = f"{GROUP}/"


@dataclass(frozen=True, slots=True, eq=False)
class Container:
    """Read once: a review looks at a container many times. Two containers are never the same, whatever they hold."""

    body: dict[str, Any]
    index: int
    init: bool
    requests: dict[str, Any]
    """Requests of zero ask for nothing and are left out; so are such `limits`."""
    limits: dict[str, Any]
    slots: dict[str, Any]
    """Slot resources and their quantities, from the limits; from the requests where a limit is missing."""
    claims: tuple[str, ...]
    """Names, in spec.resourceClaims, of the claims that the container uses."""

    @property
    def path(self) -> str:
        """JSON pointer."""
        return f"/spec/{'initContainers' if self.init else 'containers'}/{self.index}"

    @property
    def field(self) -> str:
        return f"spec.{'initContainers' if self.init else 'containers'}[{self.index}]"

    @property
    def ends_before_the_pod_runs(self) -> bool:
        """An ordinary init container; a restartable one is a sidecar and runs beside the others."""
        return self.init and self.body.get("restartPolicy") != "Always"

    @property
    def resources(self) -> list[str]:
        """Names of all that it requests or limits."""
        return sorted({**self.requests, **self.limits})

    @property
    def asks_for_mps(self) -> bool:
        """Tells whether it asks for the resource of our own MPS pods."""
        return MPS_RESOURCE in self.limits or MPS_RESOURCE in self.requests


def containers(pod: dict[str, Any]) -> Iterator[Container]:
    """Every container and init container. Ephemeral ones cannot have resources."""
    spec = mapped(pod, "spec")
    for index, body in enumerate(listed(spec, "initContainers")):
        yield _read(body, index, init=True)
    for index, body in enumerate(listed(spec, "containers")):
        yield _read(body, index, init=False)


def pre_stop_seconds(grace_seconds: int) -> int | None:
    """Seconds of the preStop sleep, in which the agent ends a container's GPU work in order.

    It is within the grace period, as the API demands, and leaves the program some of that; None where both cannot be.
    """
    if grace_seconds >= 4:
        return 2
    return 1 if grace_seconds >= 2 else None


def pre_stop_hook(container: Container, grace_seconds: int, by_program: bool) -> Hook | None:
    """The preStop hook of a container, as the API has it; None where its grace period is too short for one.

    A sleep, which the kubelet makes by itself; the program, which needs a process in the container, only where that
    tells more: a container that its probe or its postStart hook ends again and again is not announced for long. None of
    its ends is unannounced by the program, which counts where `by_program`: all nodes have it.
    """
    seconds = pre_stop_seconds(grace_seconds)
    if seconds is None:
        return None
    if by_program and _may_end_again_and_again(container):
        return {"exec": {"command": [PRE_STOP_PROGRAM, str(seconds)]}}
    return {"sleep": {"seconds": seconds}}


def _may_end_again_and_again(container: Container) -> bool:
    probes = [container.body.get("livenessProbe"), container.body.get("startupProbe")]
    return any(probes) or bool(mapped(container.body, "lifecycle").get("postStart"))


def _read(body: dict[str, Any], index: int, *, init: bool) -> Container:
    resources = mapped(body, "resources")
    requests, limits = _asked(resources, "requests"), _asked(resources, "limits")
    asked = {**requests, **limits}
    slots = {resource: asked[resource] for resource in sorted(asked) if resource.startswith(_SLOT_PREFIX)}
    claims = dict.fromkeys(str(item.get("name") or "") for item in listed(resources, "claims"))
    return Container(body, index, init, requests, limits, slots, tuple(claims))


def _asked(resources: dict[str, Any], key: str) -> dict[str, Any]:
    """The API server writes every zero as 0, whatever its unit was."""
    return {name: quantity for name, quantity in mapped(resources, key).items() if str(quantity) != "0"}
