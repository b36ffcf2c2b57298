"""The user that an MPS client may run as: not the node's UID 0, unless its share allows that.

Through the one socket that every client needs, the MPS daemon obeys UID 0 (measured on driver 580): UID 0 can end any
client of the GPU, shut the server down and change the limits of new clients. Nothing but the user ID prevents it. So a
client runs as another user, or as root of a user namespace, and no setuid program may make it UID 0.

What a pod sets is checked. What it leaves open is set, so that the kubelet refuses an image that would run as root.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gpushare.admission.claims import shares_of
from gpushare.admission.containers import Container
from gpushare.admission.review import AdmissionData, Change, listed, mapped
from gpushare.api.gpushare import RootUser
from gpushare.api.names import share_of_resource
from gpushare.grant.user import in_user_namespace, stated

_WAYS = (
    "set spec.hostUsers to false, which makes it root of a user namespace alone, or let the GpuShare allow it"
    " (clients.rootUser: Allow)"
)
_DANGER = "UID 0 of the node could end its neighbours and lift limits through MPS"
_AS_ROOT = f"{_DANGER}; run as another user, {_WAYS}"
_BECOMES_ROOT = f"a setuid program would make it UID 0, and {_DANGER}; set it to false, {_WAYS}"


def user_problems(container: Container, spec: Mapping[str, Any], data: AdmissionData) -> Iterator[str]:
    """Problems of the user that the pod sets for the container."""
    if not _is_bound(container, spec, data):
        return
    context, field = mapped(container.body, "securityContext"), f"{container.field}.securityContext"
    source, user = _effective(container, spec, "runAsUser")
    if user == 0:
        yield f"{source}.runAsUser: 0: {_AS_ROOT}"
    source, not_root = _effective(container, spec, "runAsNonRoot")
    if not_root is False and user is None:
        yield f"{source}.runAsNonRoot: false: the image's user may be root, and {_AS_ROOT}"
    if context.get("privileged"):
        yield f"{field}.privileged: true: it is root on the node, and {_AS_ROOT}"
    elif context.get("allowPrivilegeEscalation"):
        yield f"{field}.allowPrivilegeEscalation: true: {_BECOMES_ROOT}"
    elif context.get("allowPrivilegeEscalation") is None and _has_admin(context):
        yield f"{field}.capabilities.add: CAP_SYS_ADMIN brings allowPrivilegeEscalation: {_BECOMES_ROOT}"


def user_changes(container: Container, spec: Mapping[str, Any], data: AdmissionData) -> Iterator[Change]:
    if not _is_bound(container, spec, data):
        return
    context, added = mapped(container.body, "securityContext"), dict[str, bool]()
    if all(_effective(container, spec, name)[1] is None for name in ("runAsUser", "runAsNonRoot")):
        added["runAsNonRoot"] = True
    if context.get("allowPrivilegeEscalation") is None:
        added["allowPrivilegeEscalation"] = False
    path, field = f"{container.path}/securityContext", f"{container.field}.securityContext"
    if added and not context:
        yield Change(path, added, f"{field}.{next(iter(added))}")
        return
    for name, value in added.items():
        yield Change(f"{path}/{name}", value, f"{field}.{name}")


def _is_bound(container: Container, spec: Mapping[str, Any], data: AdmissionData) -> bool:
    if in_user_namespace(spec):
        return False
    names = {share_of_resource(slot) or "" for slot in container.slots}
    for claim in container.claims:
        names |= shares_of(data.claims.get(claim) or {})
    known = [data.shares[name] for name in names if name in data.shares]
    return any(share.spec.clients.root_user is RootUser.FORBID for share in known)


def _effective(container: Container, spec: Mapping[str, Any], name: str) -> tuple[str, Any]:
    """(the field that sets it, its value)."""
    own, value = stated(spec, container.body, name)
    return f"{container.field}.securityContext" if own else "spec.securityContext", value


def _has_admin(context: Mapping[str, Any]) -> bool:
    """Whether the container adds CAP_SYS_ADMIN, with which the API demands allowPrivilegeEscalation."""
    return "CAP_SYS_ADMIN" in listed(mapped(context, "capabilities"), "add")
