"""Why a container that asks for a part of a GPU is refused. Each rule yields sentences: field, value, what to do.

Variables from envFrom cannot be seen here. They do no harm: the variables that we set in `env` override them.
"""

import difflib
import posixpath
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from gpushare.api.meta import LabelSelector, SelectorOperator
from gpushare.api.names import (
    CLIENT_LOG_DIR,
    CLIENT_PIPE_DIR,
    ENV_GRANTED_FRACTION,
    MPS_RESOURCE,
    NVIDIA_RESOURCES,
    PRE_STOP_PROGRAM,
    RESERVED_ENV_PREFIXES,
    parse_device_class,
    size_template,
    slot_resource,
)
from gpushare.grant.environment import is_fraction
from gpushare.webhook.containers import Container
from gpushare.webhook.review import LONGEST_VALUE, AdmissionData, listed, quoted, shown, some

LOG_VOLUME = "gpushare-mps-log"
CLASS_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Followed by a DeviceClass' name: the extended resource by which Kubernetes lets pods ask for that class."""
LONGEST_SELECTOR = 512
MOST_KNOWN = 100
"""Names that a misspelt one is compared with, at 10 to 20 µs each."""


def slot_problems(container: Container, *, whole: bool = False) -> Iterator[str]:
    """Problems of the request for a slot that do not depend on the share. `whole`: it is for whole GPUs of a node."""
    held = "whole GPU" if whole else "slot"
    for resource, quantity in container.slots.items():
        field = f"{container.field}.resources.limits[{shown(resource)}]"
        if resource not in container.limits:
            yield f"{field}: is missing: Kubernetes counts extended resources by their limits; write the limit 1"
        elif str(quantity) != "1" and not whole:
            yield f"{field}: {quoted(quantity)} slots: a container takes exactly one; write 1, or use more containers"
        if container.ends_before_the_pod_runs:
            yield (
                f"{field}: an init container that ends cannot hold a {held}: Kubernetes would hand the same {held} to"
                " another container; ask for it in a container, or in a sidecar with restartPolicy Always"
            )
    if len(container.slots) > 1:
        asked = some(map(shown, container.slots))
        yield f"{container.field}.resources.limits: {asked}: a container reaches one GPU of one share; keep one of them"
    for resource in () if whole else container.resources:
        if resource.startswith(NVIDIA_RESOURCES):
            yield (
                f"{container.field}.resources.limits[{shown(resource)}]: a whole NVIDIA GPU beside a slot would bypass"
                " its limits; keep one of the two"
            )


def mps_problems(container: Container, data: AdmissionData) -> Iterator[str]:
    if container.asks_for_mps and data.namespace != data.own_namespace:
        yield (
            f"{container.field}.resources.limits[{MPS_RESOURCE}]: is for gpushare's own daemons in namespace"
            f" {quoted(data.own_namespace)} alone; ask for gpushare.dev/<share> in its place"
        )


def class_problems(container: Container) -> Iterator[str]:
    """Our DeviceClasses, asked for as extended resources."""
    for resource in container.resources:
        parsed = parse_device_class(resource.removeprefix(CLASS_RESOURCE_PREFIX))
        if not resource.startswith(CLASS_RESOURCE_PREFIX) or parsed is None:
            continue
        share, size = parsed
        advice = (
            f"write {shown(slot_resource(share))}"
            if size is None
            else f"use the ResourceClaimTemplate {quoted(size_template(share, size))} in spec.resourceClaims"
        )
        yield f"{container.field}.resources.limits[{shown(resource)}]: a class is not asked for like this; {advice}"


def share_problems(field: str, name: str, data: AdmissionData) -> Iterator[str]:
    """Why the share `name` cannot be used in this namespace."""
    share = data.shares.get(name)
    if share is None:
        yield f"{field}: no GpuShare {quoted(name)}{suggestion(name, data.share_names, 'gpushares')}"
        return
    if share.deleting:
        yield f"{field}: GpuShare {quoted(name)} is being deleted and takes no new pods; use another share"
    if not share.spec.allowed_namespaces.matches(dict(data.namespace_labels)):
        selector = shown(selector_text(share.spec.allowed_namespaces), LONGEST_SELECTOR)
        yield (
            f"{field}: namespace {quoted(data.namespace)} may not use GpuShare {quoted(name)}: its labels do not match"
            f" {selector} (spec.allowedNamespaces); label the namespace or use"
            " another share"
        )


def environment_problems(container: Container, expected: Mapping[str, str] | None) -> Iterator[str]:
    """Reserved variables with other values than ours. `expected`: ours; None where the container gets no grant."""
    for variable in listed(container.body, "env"):
        name = str(variable.get("name", ""))
        if not name.startswith(RESERVED_ENV_PREFIXES) or _is_ours(name, variable, expected or {}):
            continue
        value = "valueFrom" if variable.get("valueFrom") else quoted(variable.get("value") or "")
        yield f"{container.field}.env[{shown(name)}]: {value}: gpushare sets this variable from the grant; remove it"


def mount_problems(container: Container) -> Iterator[str]:
    """Mounts at or below the paths that gpushare mounts."""
    for key, where in (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")):
        for index, mount in enumerate(listed(container.body, key)):
            path = posixpath.normpath("/" + str(mount.get(where) or "").lstrip("/"))
            ours = _is_within(path, CLIENT_PIPE_DIR) or _is_within(path, PRE_STOP_PROGRAM)
            if ours or (_is_within(path, CLIENT_LOG_DIR) and not is_log_mount(mount)):
                yield (
                    f"{container.field}.{key}[{index}].{where}: {quoted(mount.get(where))}: gpushare mounts"
                    f" {CLIENT_PIPE_DIR}, {PRE_STOP_PROGRAM} and {CLIENT_LOG_DIR} itself; use another path"
                )


def volume_problems(volumes: list[Any]) -> Iterator[str]:
    for index, volume in enumerate(volumes):
        if volume.get("name") == LOG_VOLUME and volume != log_volume():
            yield f"spec.volumes[{index}].name: {quoted(LOG_VOLUME)}: the name is gpushare's; use another name"


def log_volume() -> dict[str, Any]:
    """The volume that a client's CUDA library writes its log to: bounded, and deleted with the pod."""
    return {"name": LOG_VOLUME, "emptyDir": {"sizeLimit": "16Mi"}}


def log_mount() -> dict[str, Any]:
    return {"name": LOG_VOLUME, "mountPath": CLIENT_LOG_DIR}


def is_log_mount(mount: Mapping[str, Any]) -> bool:
    """Tells whether the mount is exactly ours: no subPath, not read-only."""
    return {key: value for key, value in mount.items() if value} == log_mount()


def selector_text(selector: LabelSelector) -> str:
    """The selector in kubectl's syntax: `team=ml,tier in (a,b),!legacy`."""
    terms = [f"{key}={value}" for key, value in selector.match_labels.items()]
    for requirement in selector.match_expressions:
        values = ",".join(requirement.values)
        match requirement.operator:
            case SelectorOperator.IN:
                terms.append(f"{requirement.key} in ({values})")
            case SelectorOperator.NOT_IN:
                terms.append(f"{requirement.key} notin ({values})")
            case SelectorOperator.EXISTS:
                terms.append(requirement.key)
            case SelectorOperator.DOES_NOT_EXIST:
                terms.append(f"!{requirement.key}")
    return ",".join(terms)


def suggestion(name: str, known: Collection[str], kind: str) -> str:
    """The end of a message about an unknown name: the nearest known one, or how to list those that exist."""
    near = difflib.get_close_matches(name, islice(known, MOST_KNOWN), n=1) if len(name) <= LONGEST_VALUE else []
    if near:
        return f"; did you mean {quoted(near[0])}?"
    if kind == "gpushares":
        return "; `kubectl get gpushares` lists all"
    return f"; it has {', '.join(map(quoted, sorted(known)))}" if known else "; it has no sizes"


def _is_ours(name: str, variable: Mapping[str, Any], expected: Mapping[str, str]) -> bool:
    if variable.get("valueFrom") or not expected:
        return False
    value = variable.get("value") or ""
    if name == ENV_GRANTED_FRACTION:  # the share's largest GPU, which it is a fraction of, may have changed since
        return is_fraction(value)
    return expected.get(name) == value


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")
