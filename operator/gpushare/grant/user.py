"""Whether a container could be UID 0 of the node, whom the MPS daemon obeys. Pure; `spec`: the pod's."""

from collections.abc import Mapping
from typing import Any

CONTEXT = "securityContext"


def stated(spec: Mapping[str, Any], container: Mapping[str, Any], name: str) -> tuple[bool, Any]:
    """(whether the container itself says it, what is said): its own word goes before its pod's; None: nobody says."""
    own = (container.get(CONTEXT) or {}).get(name)
    return (True, own) if own is not None else (False, (spec.get(CONTEXT) or {}).get(name))


def in_user_namespace(spec: Mapping[str, Any]) -> bool:
    """Then its root is nobody on the node."""
    return spec.get("hostUsers") is False


def way_to_root(spec: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """What lets the container be UID 0, or become it; empty where nothing does."""
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
