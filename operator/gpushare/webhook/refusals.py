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
    DEFAULT_LOG_DIR,
    DEFAULT_PIPE_DIR,
    GRANT_ANNOTATIONS,
    MPS_RESOURCE,
    NVIDIA_RESOURCES,
    PRE_STOP_PROGRAM,
    RESERVED_ENV_PREFIXES,
    container_annotation,
    parse_device_class,
    size_template,
    slot_resource,
)
from gpushare.grant.environment import VARIABLES, grant_from_environment
from gpushare.grant.refused import GrantRefused
from gpushare.webhook.containers import Container
from gpushare.webhook.review import LONGEST_VALUE, AdmissionData, listed, quoted, shown, some

OUR_PATHS = (CLIENT_PIPE_DIR, DEFAULT_PIPE_DIR, PRE_STOP_PROGRAM, CLIENT_LOG_DIR, DEFAULT_LOG_DIR)
"""What a container with a slot has mounted by us."""
EARLIER_LOG_MOUNT = {"name": "gpushare-mps-log", "mountPath": CLIENT_LOG_DIR}
"""What earlier releases added, and copies of their pods still have; the runtime puts the container's own directory in
its place."""
READ_ONLY_SOURCES = ("configMap", "secret", "projected", "downwardAPI", "image")
"""Volumes that the kubelet mounts read-only, whatever the mount says."""
CLASS_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Followed by a DeviceClass' name: the extended resource by which Kubernetes lets pods ask for that class."""
WARM_UP = (
    "do its work in the container that serves, before its program"
    ' (command: ["sh", "-c", "warm-up && exec program"]), and ask for it there alone'
)
"""What to do with an init container that uses the GPU: one part of it, for one after the other."""
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
                f"{field}: an init container that ends cannot hold a {held}: Kubernetes lets it have no preStop hook,"
                f" and would hand the same {held} to another container; {WARM_UP}"
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


def annotation_problem(refused: GrantRefused, *, alone: bool) -> str:
    """`alone`: no other container of the pod reads the pod's annotations, so none needs its own."""
    own = [container_annotation(name, "<container>") for name in GRANT_ANNOTATIONS if f"[{name}]" in refused.field]
    return f"{refused}; for one container alone write it as {own[0]}" if own and not alone else str(refused)


def restored_environment(container: Container, expected: Mapping[str, str]) -> tuple[list[Any], frozenset[str]] | None:
    """The variables of a copy of an admitted pod, with the grant of today in the place of an earlier one, and the names
    of those that had other values; None where it brings no grant along, or the same.
    """
    ours = _reserved(container)
    earlier = {name for one in ours if not _is_ours(name := str(one["name"]), one, expected)}
    if not expected or not _is_grant(ours) or not earlier:
        return None
    others = [variable for variable in listed(container.body, "env") if variable not in ours]
    return [*({"name": name, "value": value} for name, value in expected.items()), *others], frozenset(earlier)


def environment_problems(container: Container, expected: Mapping[str, str] | None) -> Iterator[str]:
    """Reserved variables with other values than ours, unless all together are an earlier grant.

    `expected`: ours; None where the container gets no grant.
    """
    ours = _reserved(container)
    if container.slots and _is_grant(ours):
        return
    for variable in ours:
        name = str(variable.get("name", ""))
        if _is_ours(name, variable, expected or {}):
            continue
        value = "valueFrom" if variable.get("valueFrom") else quoted(variable.get("value") or "")
        yield f"{container.field}.env[{shown(name)}]: {value}: gpushare sets this variable from the grant; remove it"


def mount_problems(container: Container, volumes: list[Any]) -> Iterator[str]:
    """Mounts at or below the paths that gpushare mounts, and read-only ones above: no place for ours can be made there.

    `volumes`: the pod's.
    """
    sources = {volume.get("name"): volume for volume in volumes}
    for key, where in (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")):
        for index, mount in enumerate(listed(container.body, key)):
            path = _in_container(str(mount.get(where) or ""))
            field = f"{container.field}.{key}[{index}].{where}: {quoted(mount.get(where))}"
            ours = next((ours for ours in OUR_PATHS if _is_within(path, ours)), None)
            if ours and not _is_earlier_log_mount(mount):
                yield f"{field}: gpushare mounts {ours} itself; use another path"
            below = next((ours for ours in OUR_PATHS if _is_within(ours, path)), None)
            if not ours and below and _is_read_only(mount, sources.get(mount.get("name"), {})):
                yield (
                    f"{field}: is a read-only volume, so gpushare's {below} has no place below it and the container"
                    " could not start; mount it elsewhere or writable"
                )


def _in_container(path: str) -> str:
    """Where it is mounted: /var/run is a link to /run in nearly every image."""
    normal = posixpath.normpath("/" + path.lstrip("/"))
    return normal.removeprefix("/var") if _is_within(normal, "/var/run") else normal


def _is_read_only(mount: Mapping[str, Any], volume: Mapping[str, Any]) -> bool:
    sources = [source for source in volume.values() if isinstance(source, Mapping)]
    always = any(kind in volume for kind in READ_ONLY_SOURCES)
    return bool(mount.get("readOnly")) or always or any(source.get("readOnly") for source in sources)


def _is_earlier_log_mount(mount: Mapping[str, Any]) -> bool:
    """No subPath, not read-only."""
    return {key: value for key, value in mount.items() if value} == EARLIER_LOG_MOUNT


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


def _reserved(container: Container) -> list[Mapping[str, Any]]:
    return [
        variable
        for variable in listed(container.body, "env")
        if str(variable.get("name", "")).startswith(RESERVED_ENV_PREFIXES)
    ]


def _is_grant(reserved: Collection[Mapping[str, Any]]) -> bool:
    """Tells whether they are a whole grant, as we write it: one by itself, or twice, is one that somebody wrote."""
    values = {str(variable["name"]): str(variable.get("value") or "") for variable in reserved}
    plain = len(values) == len(reserved) and not any(variable.get("valueFrom") for variable in reserved)
    return plain and values.keys() <= {*VARIABLES} and grant_from_environment(values) is not None


def _is_ours(name: str, variable: Mapping[str, Any], expected: Mapping[str, str]) -> bool:
    if variable.get("valueFrom") or not expected:
        return False
    return expected.get(name) == (variable.get("value") or "")


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
