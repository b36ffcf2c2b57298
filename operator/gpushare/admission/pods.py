"""Admission of a pod: what is added to containers that ask for a part of a GPU, and why a pod is refused.

A container asks by a slot, `gpushare.dev/<share>: 1`, or by a ResourceClaim. What a claim grants is known only once it
is allocated, so the node adds its variables; the rest is the same for both.

Guarantees: containers without either are never changed; what a tenant wrote is never replaced or removed; a second
pass over an admitted pod adds nothing, so a pod to which it would add something was changed after the first pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpushare.admission.claims import classes_of
from gpushare.admission.containers import Container, containers
from gpushare.admission.refusals import (
    LOG_VOLUME,
    class_problems,
    environment_problems,
    is_log_mount,
    log_mount,
    log_volume,
    mount_problems,
    mps_problems,
    share_problems,
    slot_problems,
    volume_problems,
)
from gpushare.admission.review import AdmissionData, Admitted, Answer, Change, Denied, Reason, listed, mapped, quoted
from gpushare.api.gpushare import GpuShare
from gpushare.api.names import ANNOTATION_MEMORY, ANNOTATION_THREADS, parse_device_class, share_of_resource
from gpushare.grant.environment import client_environment
from gpushare.grant.model import refusals, resolve

_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
_DEFAULT_GRACE_SECONDS = 30
_NVIDIA_CLASSES = ".nvidia.com"


def shares_asked_for(pod: dict[str, Any]) -> set[str]:
    """Names of the shares that a pod's containers ask for."""
    return {share_of_resource(slot) or "" for container in containers(pod) for slot in container.slots}


def admit_pod(pod: dict[str, Any], data: AdmissionData) -> Answer:
    """Decides on a pod that is being created."""
    annotations = mapped(mapped(pod, "metadata"), "annotations")
    if _MIRROR_ANNOTATION in annotations:  # a static pod runs already; the API only mirrors it
        return Admitted()
    spec = mapped(pod, "spec")
    problems: dict[str, Reason] = {}
    changes: list[Change] = []
    everyone = list(containers(pod))
    asking = [container for container in everyone if container.slots or _our_claims(container, data)]
    for container in everyone:
        problems.update(dict.fromkeys(mps_problems(container, data), Reason.INTERNAL_RESOURCE))
        problems.update(dict.fromkeys(class_problems(container), Reason.SLOT))
    for position, container in enumerate(everyone):
        if container not in asking:
            continue
        expected, found = _expected_environment(container, annotations, data)
        problems.update(dict.fromkeys(slot_problems(container), Reason.SLOT))
        problems.update(dict.fromkeys(_claim_problems(container, everyone[:position], data), Reason.CLAIM))
        problems.update(found)
        problems.update(dict.fromkeys(environment_problems(container, expected), Reason.ENVIRONMENT))
        problems.update(dict.fromkeys(mount_problems(container), Reason.MOUNT))
        changes += _container_changes(container, expected or {}, _grace_seconds(spec))
    if asking:
        problems.update(dict.fromkeys(volume_problems(listed(spec, "volumes")), Reason.VOLUME))
        changes += _volume_changes(spec)
    if problems:
        return Denied(tuple(problems), frozenset(problems.values()))
    return Admitted(tuple(changes), (*_warnings(asking, data), *_idle_annotations(asking, annotations)))


def check_pod(pod: dict[str, Any], data: AdmissionData) -> Answer:
    """Decides on a pod as it will be stored: all that we add must be there."""
    answer = admit_pod(pod, data)
    if isinstance(answer, Denied) or not answer.changes:
        return answer
    return Denied(
        tuple(
            f"{change.field}: is missing: the pod was changed after gpushare's mutating webhook, or never passed it;"
            " look for an admission webhook that takes it out, then create the pod again"
            for change in answer.changes
        ),
        frozenset([Reason.CHANGED_AFTERWARDS]),
    )


def update_pod(old: dict[str, Any], new: dict[str, Any]) -> Admitted:
    """Never refuses: a grant's inputs cannot change any more, and a pod must be able to end."""
    if not shares_asked_for(new):
        return Admitted()
    before, after = (mapped(mapped(pod, "metadata"), "annotations") for pod in (old, new))
    return Admitted(
        warnings=tuple(
            f"metadata.annotations[{name}]: has no effect once the pod is created; create it again"
            for name in (ANNOTATION_THREADS, ANNOTATION_MEMORY)
            if before.get(name) != after.get(name)
        )
    )


def pre_stop_seconds(grace_seconds: int) -> int | None:
    """Seconds of the preStop sleep, in which the agent ends the container's GPU work in order.

    It is within the grace period, as the API demands, and leaves the program some of that; None where both cannot be.
    """
    if grace_seconds >= 4:
        return 2
    return 1 if grace_seconds >= 2 else None


def _grace_seconds(spec: Mapping[str, Any]) -> int:
    grace = spec.get("terminationGracePeriodSeconds")
    return _DEFAULT_GRACE_SECONDS if grace is None else int(grace)


def _expected_environment(
    container: Container, annotations: Mapping[str, str], data: AdmissionData
) -> tuple[dict[str, str] | None, dict[str, Reason]]:
    """(the variables that the container must have; None where it gets no grant, problems)."""
    environment: dict[str, str] | None = None
    problems: dict[str, Reason] = {}
    for resource in container.slots:
        field = f"{container.field}.resources.limits[{resource}]"
        share = data.shares.get(share_of_resource(resource) or "")
        problems.update(dict.fromkeys(share_problems(field, share_of_resource(resource) or "", data), Reason.SHARE))
        if share is None:
            continue
        refused = refusals(share, annotations)
        problems.update(dict.fromkeys(map(str, refused), Reason.ANNOTATION))
        if not refused:
            environment = client_environment(resolve(share, annotations), share.status.gpu_memory_mib)
    return environment, problems


def _container_changes(container: Container, expected: Mapping[str, str], grace_seconds: int) -> Iterator[Change]:
    yield from _environment_changes(container, expected)
    mounts = listed(container.body, "volumeMounts")
    if not any(is_log_mount(mount) for mount in mounts):
        yield _append(container.path, container.field, "volumeMounts", mounts, log_mount())
    seconds = pre_stop_seconds(grace_seconds)
    lifecycle = mapped(container.body, "lifecycle")
    if seconds is not None and not lifecycle.get("preStop"):
        hook = {"sleep": {"seconds": seconds}}
        field = f"{container.field}.lifecycle.preStop"
        if lifecycle:
            yield Change(f"{container.path}/lifecycle/preStop", hook, field)
        else:
            yield Change(f"{container.path}/lifecycle", {"preStop": hook}, field)


def _environment_changes(container: Container, expected: Mapping[str, str]) -> Iterator[Change]:
    """Before the tenant's own variables, so that those can refer to ours as $(GPUSHARE_…)."""
    present = {variable.get("name") for variable in listed(container.body, "env")}
    missing = [{"name": name, "value": value} for name, value in expected.items() if name not in present]
    if missing and not present:
        yield Change(f"{container.path}/env", missing, f"{container.field}.env[{missing[0]['name']}]")
        return
    for position, variable in enumerate(missing):
        yield Change(f"{container.path}/env/{position}", variable, f"{container.field}.env[{variable['name']}]")


def _volume_changes(spec: Mapping[str, Any]) -> Iterator[Change]:
    volumes = listed(spec, "volumes")
    if not any(volume.get("name") == LOG_VOLUME for volume in volumes):
        yield _append("/spec", "spec", "volumes", volumes, log_volume())


def _append(path: str, field: str, key: str, present: list[Any], item: dict[str, Any]) -> Change:
    named = f"{field}.{key}[{item['name']}]"
    return Change(f"{path}/{key}/-", item, named) if present else Change(f"{path}/{key}", [item], named)


def _warnings(asking: list[Container], data: AdmissionData) -> Iterator[str]:
    names = {share_of_resource(resource) or "" for container in asking for resource in container.slots}
    for name in sorted(names):
        if _is_memory_overcommitted(data.shares[name]):
            yield f'GpuShare "{name}" over-commits GPU memory: an allocation within the grant may fail'


def _idle_annotations(asking: list[Container], annotations: Mapping[str, str]) -> Iterator[str]:
    """Annotations that nothing reads, since every container has a claim."""
    if asking and not any(container.slots for container in asking):
        for name in (ANNOTATION_THREADS, ANNOTATION_MEMORY):
            if name in annotations:
                yield f"metadata.annotations[{name}]: has no effect on claims: write it as the claim's capacity"


def _is_memory_overcommitted(share: GpuShare) -> bool:
    granted = share.spec.clients.per_gpu * share.memory_default_mib
    return share.spec.clients.memory.overcommit and granted > share.status.gpu_memory_mib > 0


def _our_claims(container: Container, data: AdmissionData) -> list[str]:
    """Names, in spec.resourceClaims, of our claims that the container uses."""
    return [name for name in container.claims if _is_our_claim(data.claims.get(name))]


def _claim_problems(container: Container, others: Sequence[Container], data: AdmissionData) -> Iterator[str]:
    """Why the container's use of our claims is refused. `others`: the containers of the pod before it.

    Only claims that exist, or whose template does, can be checked; the node's agent checks again before a container
    starts.
    """
    ours = _our_claims(container, data)
    field = f"{container.field}.resources.claims"
    if not ours:
        return
    if len(ours) > 1:
        named = ", ".join(map(quoted, ours))
        yield f"{field}: {named}: a container reaches one GPU by one claim of gpushare's; keep one of them"
    if container.slots:
        slots = ", ".join(container.slots)
        yield f"{field}: {quoted(ours[0])} beside {slots}: a container reaches one GPU by one of the two; keep one"
    for name in ours:
        users = [other for other in others if name in other.claims]
        if users:
            yield (
                f"{field}: {quoted(name)} is used by {users[0].field} already: a claim is one container's; write"
                " another entry in spec.resourceClaims"
            )
        if len(_requests(data.claims[name])) > 1:
            yield f"{field}: {quoted(name)} has several requests: a claim of gpushare's classes has exactly one"
    for name in container.claims:
        beside = [one for one in classes_of(data.claims.get(name) or {}) if one.endswith(_NVIDIA_CLASSES)]
        if beside:
            yield (
                f"{field}: {quoted(name)} is a claim of DeviceClass {quoted(beside[0])}: a whole NVIDIA GPU beside"
                " gpushare's claim would bypass its limits; keep one of the two"
            )


def _is_our_claim(spec: Mapping[str, Any] | None) -> bool:
    return any(map(parse_device_class, classes_of(spec or {})))


def _requests(spec: Mapping[str, Any]) -> list[Any]:
    return list((spec.get("devices") or {}).get("requests") or [])
