"""The containers of a pod: the place of each in the pod, and what it asks of gpushare."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpushare.admission.review import listed, mapped
from gpushare.api.names import GROUP, MPS_RESOURCE

_SLOT_PREFIX = f"{GROUP}/"


@dataclass(frozen=True, slots=True)
class Container:
    body: dict[str, Any]
    index: int
    init: bool

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
    def limits(self) -> dict[str, Any]:
        return mapped(mapped(self.body, "resources"), "limits")

    @property
    def requests(self) -> dict[str, Any]:
        return mapped(mapped(self.body, "resources"), "requests")

    @property
    def slots(self) -> dict[str, Any]:
        """Slot resources and their quantities, from the limits; from the requests where a limit is missing."""
        asked = {**self.requests, **self.limits}
        return {resource: asked[resource] for resource in sorted(asked) if resource.startswith(_SLOT_PREFIX)}

    @property
    def claims(self) -> list[str]:
        """Names, in spec.resourceClaims, of the claims that the container uses."""
        used = listed(mapped(self.body, "resources"), "claims")
        return list(dict.fromkeys(str(item.get("name") or "") for item in used))

    @property
    def asks_for_mps(self) -> bool:
        """Whether it asks for the resource of our own MPS pods."""
        return MPS_RESOURCE in self.limits or MPS_RESOURCE in self.requests


def containers(pod: dict[str, Any]) -> Iterator[Container]:
    """Every container and init container. Ephemeral ones cannot have resources."""
    spec = mapped(pod, "spec")
    for index, body in enumerate(listed(spec, "initContainers")):
        yield Container(body, index, init=True)
    for index, body in enumerate(listed(spec, "containers")):
        yield Container(body, index, init=False)
