"""Admission of a pod: what is added to containers that ask for a part of a GPU, and why a pod is refused.

A container asks by a slot, `gpushare.dev/<share>: 1`, or by a ResourceClaim. What a claim grants is known only once it
is allocated, so the node adds its variables; the rest is the same for both. One that asks for whole GPUs by the same
name gets nothing added, since no MPS daemon serves it.

Guarantees: containers without either are never changed; what a tenant wrote is never replaced or removed; a second
pass over an admitted pod adds nothing, so a pod to which it would add something was changed after the first pass. A
copy of an admitted pod, such as a restored one, gets the grant of today in the place of the one that it brings along.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.api.names import ENV_GRANTED_FRACTION, parse_device_class, share_of_resource
from gpushare.grant.classes import granted_class
from gpushare.grant.environment import client_environment
from gpushare.grant.model import refusals, resolve
from gpushare.grant.refused import GrantRefused
from gpushare.kube.pods import grace_period_seconds, has_ended, tolerates
from gpushare.webhook.claims import classes_of
from gpushare.webhook.containers import Container, Hook, containers, pre_stop_hook
from gpushare.webhook.refusals import (
    WARM_UP,
    annotation_problem,
    class_problems,
    environment_problems,
    mount_problems,
    mps_problems,
    restored_environment,
    share_problems,
    slot_problems,
)
from gpushare.webhook.review import (
    AdmissionData,
    Admitted,
    Answer,
    Change,
    Denied,
    Problems,
    Reason,
    listed,
    mapped,
    quoted,
    shown,
    some,
)
from gpushare.webhook.warnings import pod_warnings

_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
_NVIDIA_CLASSES = ".nvidia.com"
_ANY_VALUE = "*"
"""A taint's value that no toleration can name: only one that tolerates every value tolerates it."""


def shares_asked_for(pod: dict[str, Any]) -> set[str]:
    """Names of the shares that a pod's containers ask for."""
    return {share_of_resource(slot) or "" for container in containers(pod) for slot in container.slots}


def mirrors(pod: dict[str, Any]) -> bool:
    """Tells whether the API only mirrors it: a static pod of a node, which runs already."""
    return _MIRROR_ANNOTATION in mapped(mapped(pod, "metadata"), "annotations")


def admit_pod(pod: dict[str, Any], data: AdmissionData) -> Answer:
    """Decides on a pod that is being created."""
    if mirrors(pod):
        return Admitted()
    annotations = mapped(mapped(pod, "metadata"), "annotations")
    spec = mapped(pod, "spec")
    problems = Problems()
    changes: list[Change] = []
    claims = _Claims.of(data)
    everyone = list(containers(pod))
    asking = [container for container in everyone if container.slots or claims.ours(container)]
    whole = [container for container in asking if _asks_for_whole(container, data)]
    shared = [container for container in asking if container not in whole]
    for container in everyone:
        problems.add(Reason.INTERNAL_RESOURCE, mps_problems(container, data))
        problems.add(Reason.SLOT, class_problems(container))
    users: dict[str, Container] = {}
    grace, by_program = int(grace_period_seconds(pod)), _is_mounted(data)
    if asking:
        changes += _toleration_changes(spec, data.tolerated)
    for container in asking:
        if problems.full:
            break
        problems.add(Reason.SLOT, slot_problems(container, whole=container in whole))
        problems.add(Reason.CLAIM, claims.problems(container, users))
        if container in whole:
            for resource in container.slots:
                problems.add(Reason.SHARE, share_problems(_field(container, resource), _share(resource), data))
            continue
        expected = _expected_environment(container, annotations, data, problems, alone=len(shared) == 1)
        problems.add(Reason.ANNOTATION, _class_problems(claims.ours(container), annotations, data))
        problems.add(Reason.ENVIRONMENT, environment_problems(container, expected))
        problems.add(Reason.MOUNT, mount_problems(container, listed(spec, "volumes")))
        changes += _container_changes(container, expected or {}, pre_stop_hook(container, grace, by_program))
    if problems:
        return problems.denied()
    return Admitted(tuple(changes), pod_warnings(pod, shared, data))


def check_pod(pod: dict[str, Any], data: AdmissionData) -> Answer:
    """Decides on a pod as it will be stored: all that we add must be there."""
    answer = admit_pod(pod, data)
    if isinstance(answer, Denied):
        return answer
    missing = [change for change in answer.changes if not _may_be_missing(change)]
    if not missing:
        return Admitted(warnings=answer.warnings)
    problems = Problems()
    problems.add(
        Reason.CHANGED_AFTERWARDS,
        (
            f"{change.field}: is missing: the pod was changed after gpushare's mutating webhook, or never passed it;"
            " look for an admission webhook that takes it out, then create the pod again"
            for change in missing
        ),
    )
    return problems.denied()


def _may_be_missing(change: Change) -> bool:
    """The memory fraction: whoever added the rest, a moment ago or elsewhere, may not have known the share's GPUs, or
    other ones. A toleration: without it a pod harms nobody."""
    return change.field.endswith(f".env[{ENV_GRANTED_FRACTION}]") or change.field.startswith("spec.tolerations")


def delete_pod(pod: dict[str, Any], claims: Mapping[str, Mapping[str, Any]], silence: str) -> Admitted:
    """Never refuses. `claims`: specs of its claims. `silence`: why no agent ends its clients; empty where one does."""
    ours = shares_asked_for(pod) or any(
        parse_device_class(class_name) for spec in claims.values() for class_name in classes_of(spec)
    )
    if not silence or has_ended(pod) or not ours:
        return Admitted()
    node = mapped(pod, "spec").get("nodeName")
    return Admitted(
        warnings=(
            f"no gpushare agent reports on node {node}: CUDA clients of this pod are not terminated in order, and one"
            " that is killed in mid-kernel ends all clients of its GPU",
        )
    )


def _asks_for_whole(container: Container, data: AdmissionData) -> bool:
    """Tells whether it asks for whole GPUs, and for nothing else of a share: no variable and no volume is added to
    it."""
    asked = [data.shares.get(_share(resource)) for resource in container.slots]
    return bool(asked) and all(share is not None and share.whole for share in asked)


def _is_mounted(data: AdmissionData) -> bool:
    """Whether each node to which the pod may come has the program of preStop hooks."""
    return bool(data.shares) and all(share.status.pre_stop for share in data.shares.values())


def _share(resource: str) -> str:
    return share_of_resource(resource) or ""


def _field(container: Container, resource: str) -> str:
    return f"{container.field}.resources.limits[{shown(resource)}]"


def _expected_environment(
    container: Container, annotations: Mapping[str, str], data: AdmissionData, problems: Problems, *, alone: bool
) -> dict[str, str] | None:
    """The variables that the container must have; None where it gets no grant. Adds to `problems`.

    `alone`: no other container of the pod reads the pod's annotations.
    """
    environment: dict[str, str] | None = None
    named = str(container.body.get("name") or "")
    for resource in container.slots:
        if problems.full:
            break
        name = _share(resource)
        problems.add(Reason.SHARE, share_problems(_field(container, resource), name, data))
        share = data.shares.get(name)
        if share is None:
            continue
        refused = refusals(share, annotations, data.namespace, named)
        problems.add(Reason.ANNOTATION, (annotation_problem(problem, alone=alone) for problem in refused))
        if not refused:
            grant = resolve(share, annotations, data.namespace, named)
            environment = client_environment(grant, share.status.gpu_memory_mib)
    return environment


def _class_problems(claims: Iterable[str], annotations: Mapping[str, str], data: AdmissionData) -> Iterator[str]:
    """Why the pod's client cannot have its class by a claim. The node adds the variables once a claim is allocated."""
    for name in claims:
        for class_name in classes_of(data.claims[name]):
            share_name, size = parse_device_class(class_name) or ("", None)
            share = data.shares.get(share_name)
            if share is not None:
                try:
                    granted_class(share, annotations, data.namespace, size)
                except GrantRefused as refused:
                    yield str(refused)


def _container_changes(container: Container, expected: Mapping[str, str], hook: Hook | None) -> Iterator[Change]:
    yield from _environment_changes(container, expected)
    lifecycle = mapped(container.body, "lifecycle")
    if hook is not None and not lifecycle.get("preStop"):
        field = f"{container.field}.lifecycle.preStop"
        if lifecycle:
            yield Change(f"{container.path}/lifecycle/preStop", hook, field)
        else:
            yield Change(f"{container.path}/lifecycle", {"preStop": hook}, field)


def _environment_changes(container: Container, expected: Mapping[str, str]) -> Iterator[Change]:
    """The changes come before the tenant's own variables, so that those can refer to ours as $(GPUSHARE_…)."""
    variables = listed(container.body, "env")
    if restored := restored_environment(container, expected):
        variables, earlier = restored
        named = f"[{ENV_GRANTED_FRACTION}]" if earlier == {ENV_GRANTED_FRACTION} else ""
        yield Change(f"{container.path}/env", variables, f"{container.field}.env{named}")
        return
    present = {variable.get("name") for variable in variables}
    missing = [{"name": name, "value": value} for name, value in expected.items() if name not in present]
    if missing and not present:
        yield Change(f"{container.path}/env", missing, f"{container.field}.env[{missing[0]['name']}]")
        return
    for position, variable in enumerate(missing):
        yield Change(f"{container.path}/env/{position}", variable, f"{container.field}.env[{variable['name']}]")


def _toleration_changes(spec: Mapping[str, Any], keys: Iterable[str]) -> Iterator[Change]:
    """Kubernetes adds a toleration of a resource's own name alone, and clouds taint GPU nodes by another."""
    present = listed(spec, "tolerations")
    missing = [
        {"key": key, "operator": "Exists", "effect": "NoSchedule"}
        for key in keys
        if not tolerates({"spec": spec}, {"key": key, "value": _ANY_VALUE, "effect": "NoSchedule"})
    ]
    if missing and not present:
        yield Change("/spec/tolerations", missing, "spec.tolerations")
        return
    for toleration in missing:
        yield Change("/spec/tolerations/-", toleration, f"spec.tolerations[{toleration['key']}]")


@dataclass(frozen=True, slots=True)
class _Claims:
    """What the claims of a pod are, by name in its spec.resourceClaims. Only claims that exist, or whose template does,
    are known; the node's agent checks again before a container starts.
    """

    requests: Mapping[str, int]
    """The claims of ours, and how many requests each has."""
    nvidia: Mapping[str, str]
    """The claims of NVIDIA's driver, and a class that each names."""

    @classmethod
    def of(cls, data: AdmissionData) -> "_Claims":
        requests, nvidia = dict[str, int](), dict[str, str]()
        for name, spec in data.claims.items():
            classes = classes_of(spec)
            if any(map(parse_device_class, classes)):
                requests[name] = len(listed(mapped(spec, "devices"), "requests"))
            if beside := next((class_name for class_name in classes if class_name.endswith(_NVIDIA_CLASSES)), None):
                nvidia[name] = beside
        return cls(requests, nvidia)

    def ours(self, container: Container) -> list[str]:
        """Our claims that the container uses."""
        return [name for name in container.claims if name in self.requests]

    def problems(self, container: Container, users: dict[str, Container]) -> Iterator[str]:
        """Why the container's use of our claims is refused. `users`: who used each before; the container is added."""
        ours = self.ours(container)
        field = f"{container.field}.resources.claims"
        if not ours:
            return
        if container.ends_before_the_pod_runs:
            yield (
                f"{field}: {quoted(ours[0])}: an init container that ends cannot use a claim: Kubernetes lets it have"
                f" no preStop hook, so a deletion in mid-kernel could end its neighbours; {WARM_UP}"
            )
        if len(ours) > 1:
            named = some(map(quoted, ours))
            yield f"{field}: {named}: a container reaches one GPU by one claim of gpushare's; keep one of them"
        if container.slots:
            slots = some(map(shown, container.slots))
            yield f"{field}: {quoted(ours[0])} beside {slots}: a container reaches one GPU by one of the two; keep one"
        for name in ours:
            if (user := users.setdefault(name, container)) is not container:
                yield (
                    f"{field}: {quoted(name)} is used by {user.field} already: a claim is one container's; write"
                    " another entry in spec.resourceClaims"
                )
            if self.requests[name] > 1:
                yield f"{field}: {quoted(name)} has several requests: a claim of gpushare's classes has exactly one"
        for name in container.claims:
            if name in self.nvidia:
                yield (
                    f"{field}: {quoted(name)} is a claim of DeviceClass {quoted(self.nvidia[name])}: a whole NVIDIA GPU"
                    " beside gpushare's claim would bypass its limits; keep one of the two"
                )
