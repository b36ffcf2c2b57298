"""What is kept of the objects that tenants write: the fields that are shown, each cut to a bounded length. Pure.

Kubernetes bounds neither the message of an event of core/v1 nor the number of fields of a claim's parameters, so one
object may have more than a megabyte. Cut where it is read, nothing after that can be larger.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from gpushare.api import names
from gpushare.kube.claims import allocation_results, requested_classes
from gpushare.kube.resources import Object

LONGEST_MESSAGE = 4096
"""Characters: the refusal of a pod may have many sentences. The note of an event of events.k8s.io has 1024 at most."""
LONGEST_NAME = 316
"""Characters: no name of Kubernetes is longer, a prefix included."""
MOST_CONTAINERS = 32
MOST_ENTRIES = 16
CUT = "…"

_OF_EVENT = ("reason", "type", "reportingComponent", "reportingInstance", "lastTimestamp", "eventTime", "count")
_OF_ABOUT = ("kind", "namespace", "name", "uid")
_OF_METADATA = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "resourceVersion")
_OF_POD = ("nodeName", "schedulerName")
_OF_CONDITION = ("type", "status", "reason", "message")
_OF_STATE = ("reason", "message", "exitCode", "startedAt")


def cut(text: str, longest: int = LONGEST_MESSAGE) -> str:
    return text if len(text) <= longest else text[:longest] + CUT


def kept_event(event: Object) -> Object:
    """An event of core/v1."""
    series, source = event.get("series") or {}, event.get("source") or {}
    return {
        "metadata": _metadata(event),
        "involvedObject": _short(event.get("involvedObject") or {}, _OF_ABOUT),
        "message": cut(str(event.get("message") or "")),
        "source": _short(source, ("component",)),
        **({"series": _short(series, ("count", "lastObservedTime"))} if series else {}),
        **_short(event, _OF_EVENT),
    }


def kept_claim(claim: Object) -> Object | None:
    """Which of our classes a claim names, and what it has of our devices; None: it names none of our classes."""
    ours = {name: None for name in requested_classes(claim) if names.parse_device_class(name)}
    if not ours:
        return None
    requests = [{"exactly": {"deviceClassName": name}} for name in islice(ours, MOST_ENTRIES)]
    results = [
        _short(result, ("driver", "pool", "device"))
        | {"consumedCapacity": _amounts(result.get("consumedCapacity") or {})}
        for result in allocation_results(claim)[:MOST_ENTRIES]
    ]
    return {
        "metadata": _metadata(claim),
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def kept_waiting_pod(pod: Object) -> Object:
    """What says why a pod does not run."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    gates, claims = spec.get("schedulingGates") or (), spec.get("resourceClaims") or ()
    return {
        "metadata": _metadata(pod),
        "spec": {
            **_short(spec, _OF_POD),
            "schedulingGates": [_short(gate, ("name",)) for gate in gates[:MOST_ENTRIES]],
            "resourceClaims": [
                _short(claim, ("name", "resourceClaimName", "resourceClaimTemplateName"))
                for claim in claims[:MOST_CONTAINERS]
            ],
            **{kind: list(_containers(spec.get(kind) or ())) for kind in ("containers", "initContainers")},
        },
        "status": {
            **_short(status, ("phase", "reason", "message")),
            "conditions": [
                _short(condition, _OF_CONDITION) for condition in (status.get("conditions") or ())[:MOST_ENTRIES]
            ],
            "resourceClaimStatuses": [
                _short(claim, ("name", "resourceClaimName"))
                for claim in (status.get("resourceClaimStatuses") or ())[:MOST_CONTAINERS]
            ],
            **{
                kind: [_container_status(item) for item in (status.get(kind) or ())[:MOST_CONTAINERS]]
                for kind in ("containerStatuses", "initContainerStatuses")
            },
        },
    }


def _containers(listed: Iterable[Object]) -> Iterator[Object]:
    for container in islice(listed, MOST_CONTAINERS):
        limits = (container.get("resources") or {}).get("limits") or {}
        yield {**_short(container, ("name", "image")), "resources": {"limits": _amounts(limits)}}


def _container_status(status: Object) -> Object:
    def states(of: str) -> Object:
        return {name: _short(state or {}, _OF_STATE) for name, state in (status.get(of) or {}).items()}

    return {**_short(status, ("name", "ready")), "state": states("state"), "lastState": states("lastState")}


def _metadata(obj: Object) -> Object:
    return _short(obj["metadata"], _OF_METADATA)


def _amounts(amounts: Mapping[str, Any]) -> Object:
    entries = islice(amounts.items(), MOST_ENTRIES)
    return {cut(name, LONGEST_NAME): cut(str(amount), LONGEST_NAME) for name, amount in entries}


def _short(mapping: Mapping[str, Any], fields: Iterable[str]) -> Object:
    """These fields, where they are there: texts of a bounded length, numbers and truth values."""
    shown: Object = {}
    for name in fields:
        value = mapping.get(name)
        if isinstance(value, str):
            shown[name] = cut(value)
        elif isinstance(value, bool | int | float):
            shown[name] = value
    return shown
