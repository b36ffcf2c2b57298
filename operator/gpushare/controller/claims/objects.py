"""The DeviceClasses of a share that is delivered by ResourceClaim, and a claim template for each of its sizes. Pure.

A class selects the share's devices; a size's class does too, so that quota counts it by name, and admission holds its
claims to the size's capacities. Templates exist in every namespace that may use the share. All of them belong to the
share by label and by owner, and are deleted first when the share is: then nothing new can be claimed.
"""

from collections.abc import Mapping

from gpushare.api import names
from gpushare.api.gpushare import GpuShare, Size
from gpushare.controller.writes import stamped
from gpushare.kube.resources import Object

REQUEST = "gpu"
"""Name of the one request in a template's claims."""


def device_classes(share: GpuShare) -> list[Object]:
    """Apply configurations, the share's own class first; empty if it is being deleted or not delivered by claims."""
    if not share.by_claims or share.deleting:
        return []
    own = _class(share, names.device_class(share.name))
    own["spec"]["extendedResourceName"] = names.slot_resource(share.name)
    sizes = [_class(share, names.size_class(share.name, size.name)) for size in share.spec.sizes]
    return [own, *sizes]


def share_templates(share: GpuShare) -> list[Object]:
    """The templates that every namespace which may use the share should have, with their stamps. Rendered once for all
    namespaces: `in_namespace` makes an apply configuration of one.
    """
    if not share.by_claims or share.deleting:
        return []
    return [stamped(_template(share, size)) for size in share.spec.sizes]


def in_namespace(body: Object, namespace: str) -> Object:
    """`body` as it is applied in `namespace`; empty for an object of the cluster."""
    return {**body, "metadata": {"namespace": namespace, **body["metadata"]}} if namespace else body


def may_have_templates(namespace: str, labels: Mapping[str, str], share: GpuShare, own_namespace: str) -> bool:
    """Tells whether users of `namespace` may claim the share; those of Kubernetes and our own have no users."""
    if namespace == own_namespace or namespace.startswith("kube-"):
        return False
    return share.spec.allowed_namespaces.matches(labels)


def _class(share: GpuShare, name: str) -> Object:
    device = f'device.driver == "{names.DRA_DRIVER}"'
    domain, attribute = names.DRA_DRIVER, names.ATTRIBUTE_SHARE
    expression = f'{device} && device.attributes["{domain}"].?{attribute}.orValue("") == "{share.name}"'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": _metadata(share, name),
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def _template(share: GpuShare, size: Size) -> Object:
    request = {
        "name": REQUEST,
        "exactly": {
            "deviceClassName": names.size_class(share.name, size.name),
            "allocationMode": "ExactCount",
            "count": 1,
            "capacity": {"requests": size.capacities},
        },
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": _metadata(share, names.size_template(share.name, size.name)),
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def _metadata(share: GpuShare, name: str) -> Object:
    return {
        "name": name,
        "labels": {
            "app.kubernetes.io/name": "gpushare",
            "app.kubernetes.io/managed-by": "gpushare-operator",
            names.LABEL_SHARE: share.name,
        },
        "ownerReferences": [
            {"apiVersion": names.API_VERSION, "kind": "GpuShare", "name": share.name, "uid": share.metadata.uid}
        ],
    }
