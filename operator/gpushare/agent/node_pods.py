"""What the agent keeps of the pods of its node: the fields that it reads, and a bounded number of each. Pure.

Everybody who may create pods can name a node in them, however many and however large, whether they run or not: a pod of
250,000 readiness gates, which etcd takes, has 48 MB as Python has it.

Guarantees: what is kept of one pod is bounded, whatever is in it: 300 kB of JSON once the kubelet has taken it up, of
which it takes up a few hundred at most, and 12 kB otherwise. Of its containers those with a part of a GPU are kept
first. Of one that is left out nothing is known but that its pod exists; if it uses a GPU, that is a finding (`usage`).
Who needs all of a pod asks the API server.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gpushare.api import names
from gpushare.grant.environment import VARIABLES, grant_from_environment
from gpushare.kube.client import Object
from gpushare.kube.pods import (
    MIRROR,
    SCHEDULED,
    Container,
    Pod,
    asks_for_gpu,
    containers,
    environment,
    has_ended,
    is_bound,
    is_taken_up,
    limits,
    mirrored_uid,
    requested_resources,
)

MAX_CONTAINERS = 128
MAX_CONTAINERS_UNSTARTED = 2
"""The bound of a pod that the kubelet has not taken up, and of one that has ended."""
MAX_RESOURCES = 8
"""Resources of each container that are kept, and as many claims."""
MAX_CLAIMS = 64
"""The bound of each pod."""
MAX_TEXT = 256
"""More than any value of ours has, in characters."""

_KINDS = (
    ("containers", "containerStatuses"),
    ("initContainers", "initContainerStatuses"),
    ("ephemeralContainers", "ephemeralContainerStatuses"),
)


def kept_pod(pod: Object) -> Object | None:
    """What is kept, in the API's own form. None: it has ended and never asked for a part of one of our GPUs."""
    ended = has_ended(pod)
    if ended and not (asks_for_gpu(pod) or any(map(_concerns_us, containers(pod)))):
        return None
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    most = MAX_CONTAINERS if is_taken_up(pod) and not ended else MAX_CONTAINERS_UNSTARTED
    kept = {id(container) for container in _first(containers(pod, ephemeral=True), most)}
    kept_spec = _fields(spec, "terminationGracePeriodSeconds", "priority", "hostUsers")
    kept_status = _fields(status, "phase", "startTime")
    kept_status |= _unless_empty("conditions", [{"type": SCHEDULED, "status": "True"}] if is_bound(pod) else [])
    for field, statuses in _KINDS:
        chosen = [container for container in spec.get(field) or () if id(container) in kept]
        by_name = {str(item.get("name")): item for item in status.get(statuses) or ()}
        kept_spec |= _unless_empty(field, [_container(item) for item in chosen])
        kept_status |= _unless_empty(
            statuses, [_status(by_name[item["name"]]) for item in chosen if item["name"] in by_name]
        )
    kept_spec |= _unless_empty("resourceClaims", _items(spec.get("resourceClaims"), "name", "resourceClaimName"))
    kept_status |= _unless_empty(
        "resourceClaimStatuses", _items(status.get("resourceClaimStatuses"), "name", "resourceClaimName")
    )
    if for_slots := status.get("extendedResourceClaimStatus"):
        mappings = _items(for_slots.get("requestMappings"), "containerName", "resourceName", "requestName")
        kept_status["extendedResourceClaimStatus"] = {
            **_fields(for_slots, "resourceClaimName"),
            "requestMappings": mappings,
        }
    return {"metadata": _metadata(pod), "spec": kept_spec, "status": kept_status}


def _metadata(pod: Pod) -> Object:
    metadata = pod["metadata"]
    kept = _fields(metadata, "name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds")
    uid = mirrored_uid(pod)
    if uid and len(uid) <= MAX_TEXT:
        kept["annotations"] = {MIRROR: uid}
        kept["ownerReferences"] = [{"kind": "Node", "controller": True}]
    return kept


def _first(listed: list[Container], most: int) -> list[Container]:
    """First those with something of ours or a claim, then those with another extended resource, then the others."""
    return sorted(listed, key=lambda container: (not _concerns_us(container), not _foreign(container)))[:most]


def _concerns_us(container: Container) -> bool:
    return bool((container.get("resources") or {}).get("claims")) or any(map(_is_ours, limits(container)))


def _foreign(container: Container) -> list[str]:
    """Extended resources of others, NVIDIA's first: a share may give whole GPUs under any of these names."""
    named = (name for name in requested_resources(container) if "/" in name and not _is_ours(name))
    return sorted(named, key=lambda name: (not name.startswith(names.NVIDIA_RESOURCES), name))


def _is_ours(resource: str) -> bool:
    return names.share_of_resource(resource) is not None or resource == names.MPS_RESOURCE


def _container(container: Container) -> Object:
    kept = _fields(container, "name", "restartPolicy")
    kept |= _unless_empty("resources", _resources(container))
    kept |= _unless_empty("env", [{"name": name, "value": value} for name, value in _grant(container).items()])
    for probe in ("livenessProbe", "startupProbe"):
        kept |= _unless_empty(probe, _fields(container.get(probe) or {}, "terminationGracePeriodSeconds"))
    return kept | _unless_empty("lifecycle", _fields(container.get("lifecycle") or {}, "stopSignal"))


def _grant(container: Container) -> dict[str, str]:
    """The variables that say what it was granted; none where they are no grant."""
    variables = environment(container) if _concerns_us(container) else {}
    ours = {name: _bounded(variables[name]) for name in VARIABLES if name in variables}
    return {} if grant_from_environment(ours) is None else ours


def _resources(container: Container) -> Object:
    """Ours before others', of which every quantity is written as 1."""
    own = {name: _bounded(quantity) for name, quantity in limits(container).items() if _is_ours(name)}
    asked = own | dict.fromkeys(_foreign(container), "1")
    limited = dict(list(asked.items())[:MAX_RESOURCES])
    claims = _items((container.get("resources") or {}).get("claims"), "name", "request", most=MAX_RESOURCES)
    return _unless_empty("limits", limited) | _unless_empty("claims", claims)


def _status(status: Mapping[str, Any]) -> Object:
    """Whether it runs, and since when."""
    kept = _fields(status, "name", "containerID", "stopSignal")
    running = (status.get("state") or {}).get("running")
    return kept if running is None else {**kept, "state": {"running": _fields(running, "startedAt")}}


def _items(listed: Iterable[Mapping[str, Any]] | None, *fields: str, most: int = MAX_CLAIMS) -> list[Object]:
    return [_fields(item, *fields) for item in list(listed or ())[:most]]


def _fields(source: Mapping[str, Any], *fields: str) -> Object:
    """The fields that are there and are no lists or objects."""
    named = ((field, source.get(field)) for field in fields)
    return {field: _bounded(value) for field, value in named if isinstance(value, str | int | float)}


def _bounded(value: Any) -> Any:
    """Nothing of what is too long: a part of it would be something else."""
    return "" if isinstance(value, str) and len(value) > MAX_TEXT else value


def _unless_empty(field: str, value: Any) -> Object:
    return {field: value} if value else {}
