"""The writes that give shares their DeviceClasses and claim templates, and delete those that are left over. Pure.

Guarantees: a share that is being deleted loses them before any other object; those of a share that is gone, or that was
made again by the same name, are deleted; a template that changed is deleted first, since its spec cannot change. If
nothing differs, nothing is written.
"""

from collections.abc import Iterable, Mapping

from gpushare.api import names
from gpushare.api.gpushare import GpuShare
from gpushare.controller.claims.cache import ClaimCache
from gpushare.controller.claims.objects import device_classes, in_namespace, may_have_templates, share_templates
from gpushare.controller.settings import OperatorSettings
from gpushare.controller.writes import MANAGER, Write, WriteStage, stamp_of
from gpushare.kube.cache.store import Key
from gpushare.kube.client import CLAIM_TEMPLATES, DEVICE_CLASSES, NAMESPACES, Object, Resource


def claim_writes(shares: Iterable[GpuShare], claims: ClaimCache, settings: OperatorSettings) -> list[Write]:
    """The writes, in no order; none until everything has been listed."""
    if not claims.known:
        return []
    live = list(shares)
    classes = {("", body["metadata"]["name"]): body for share in live for body in device_classes(share)}
    with_templates = [(share, bodies) for share in live if (bodies := share_templates(share))]
    templates = {
        (name, body["metadata"]["name"]): body
        for name, namespace in _namespaces(claims)
        for share, bodies in with_templates
        if may_have_templates(name, namespace, share, settings.namespace)
        for body in bodies
    }
    return [
        *_writes(DEVICE_CLASSES, classes, claims.all(DEVICE_CLASSES), WriteStage.RUN),
        *_writes(CLAIM_TEMPLATES, templates, claims.all(CLAIM_TEMPLATES), WriteStage.REACH),
    ]


def shares_with_classes(claims: ClaimCache) -> set[str]:
    """Shares of which a DeviceClass is still there. Without its class a share cannot be claimed.

    Templates do not count: whoever may write templates in some namespace could keep one there that looks like ours, and
    with it the share of a whole cluster.
    """
    classes = claims.all(DEVICE_CLASSES).items()
    return {_share(obj) for key, obj in classes if _is_ours(DEVICE_CLASSES, key, obj)}


def _namespaces(claims: ClaimCache) -> Iterable[tuple[str, dict[str, str]]]:
    """Names and labels of the namespaces that are not being deleted."""
    for (_, name), obj in sorted(claims.all(NAMESPACES).items()):
        if not obj["metadata"].get("deletionTimestamp"):
            yield name, obj["metadata"].get("labels") or {}


def _writes(
    resource: Resource, desired: Mapping[Key, Object], current: Mapping[Key, Object], stage: WriteStage
) -> Iterable[Write]:
    """The writes of one kind. `desired`: bodies without their namespaces."""
    for key, obj in current.items():
        body = desired.get(key)
        if not _is_ours(resource, key, obj):
            continue
        stays = body is not None and _same_owner(obj, body) and (resource == DEVICE_CLASSES or _same(obj, body))
        if not stays and not obj["metadata"].get("deletionTimestamp"):
            yield _write(WriteStage.CLOSE, "delete", resource, key, {}, _share(obj), uid=obj["metadata"]["uid"])
    for key, body in desired.items():
        known = current.get(key)
        if known is None or (resource == DEVICE_CLASSES and _same_owner(known, body) and not _same(known, body)):
            yield _write(stage, "apply", resource, key, in_namespace(body, key[0]), "")


def _is_ours(resource: Resource, key: Key, obj: Object) -> bool:
    """Tells whether name and label alike say so, as our policy has it: any user may put our label on what is the
    user's."""
    _, name = key
    if resource == CLAIM_TEMPLATES:
        return name.endswith(f".{_share(obj)}")
    parsed = names.parse_device_class(name)
    return parsed is not None and parsed[0] == _share(obj)


def _same(obj: Object, body: Object) -> bool:
    """A class is compared by its spec, a template by the hash of what we applied: quantities come back rewritten."""
    return obj.get("spec") == body["spec"] if body["kind"] == "DeviceClass" else stamp_of(obj) == stamp_of(body)


def _same_owner(obj: Object, body: Object) -> bool:
    owners = {owner.get("uid") for owner in obj["metadata"].get("ownerReferences") or []}
    return {owner["uid"] for owner in body["metadata"]["ownerReferences"]} <= owners


def _share(obj: Object) -> str:
    return str((obj["metadata"].get("labels") or {}).get(names.LABEL_SHARE, ""))


def _write(
    stage: WriteStage, verb: str, resource: Resource, key: Key, body: Object, share: str, uid: str = ""
) -> Write:
    namespace, name = key
    return Write(
        stage,
        "apply" if verb == "apply" else "delete",
        resource,
        name,
        body,
        namespace=namespace or None,
        manager=MANAGER,
        uid=uid,
        shares=frozenset([share] if share else []),
    )
