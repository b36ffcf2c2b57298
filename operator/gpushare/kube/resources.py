"""Objects, kinds and errors of the Kubernetes API, without a client: a part that imports this alone starts quickly."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

Object = dict[str, Any]


class KubeError(Exception):
    """The API server refused. `status` is the HTTP status, `reason` the API's own word, such as AlreadyExists.

    `retry_after`: seconds before which it asks not to be asked again.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{reason or status}: {message}")
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    @property
    def not_found(self) -> bool:
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def conflict(self) -> bool:
        return self.status == HTTPStatus.CONFLICT

    @property
    def gone(self) -> bool:
        return self.status == HTTPStatus.GONE

    @property
    def failed(self) -> bool:
        """The server did not refuse the request, but could not answer it."""
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR

    @property
    def refused(self) -> bool:
        """Somebody has to mend something. Else the API server could not answer, or asks for patience."""
        return not (self.failed or self.retry_after) or "failed calling webhook" in str(self)


@dataclass(frozen=True, slots=True)
class Resource:
    """The place of a kind in the API. `group` is empty for the core API."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


GPU_SHARES = Resource("gpushare.dev", "v1alpha1", "gpushares")
GPU_NODES = Resource("gpushare.dev", "v1alpha1", "gpunodes")
NODES = Resource("", "v1", "nodes")
PODS = Resource("", "v1", "pods")
NAMESPACES = Resource("", "v1", "namespaces")
SECRETS = Resource("", "v1", "secrets")
DEPLOYMENTS = Resource("apps", "v1", "deployments")
DAEMON_SETS = Resource("apps", "v1", "daemonsets")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices")
EARLIER_RESOURCE_SLICES = tuple(
    Resource("resource.k8s.io", version, "resourceslices") for version in ("v1beta2", "v1beta1")
)
"""As Kubernetes before 1.34 serves them, where it does; spec.driver and spec.nodeName are where they are in v1."""
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims")
CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")
CLAIMS_SINCE = (1, 36)
"""The first Kubernetes in which claims consume parts of a device's capacity by default (DRAConsumableCapacity)."""
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses")
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
"""Kueue's, from 0.15 on in this version."""
MUTATING_WEBHOOKS = Resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
VALIDATING_WEBHOOKS = Resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations")
POLICIES = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")
EVENTS = Resource("events.k8s.io", "v1", "events")
CORE_EVENTS = Resource("", "v1", "events")
"""The same objects as the kubelet writes them, and the only form whose selectors name the object concerned."""
