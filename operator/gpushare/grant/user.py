"""Whether a container can be UID 0 of the node, which the MPS daemon obeys. Pure. `spec` is the pod's spec."""

from collections.abc import Mapping
from typing import Any

CONTEXT = "securityContext"


def stated(spec: Mapping[str, Any], container: Mapping[str, Any], name: str) -> tuple[bool, Any]:
    """(whether the container itself sets the field, the value): the container's precedes the pod's; None: unset."""
    own = (container.get(CONTEXT) or {}).get(name)
    return (True, own) if own is not None else (False, (spec.get(CONTEXT) or {}).get(name))


def in_user_namespace(spec: Mapping[str, Any]) -> bool:
    """Whether the pod has a user namespace: its root is then an ordinary user of the node."""
    return spec.get("hostUsers") is False


def way_to_root(spec: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """Why the container can be or become UID 0; empty where it cannot."""
    if in_user_namespace(spec):
        return ""
    own = container.get(CONTEXT) or {}
    user, not_root = (stated(spec, container, name)[1] for name in ("runAsUser", "runAsNonRoot"))
    if user == 0:
        return "runAsUser is 0"
    if user is None and not not_root:
        return "neither runAsUser nor runAsNonRoot: true is set"
    if own.get("privileged"):
        return "it is privileged"
    return "" if own.get("allowPrivilegeEscalation") is False else "allowPrivilegeEscalation is not false"
