"""Pods whose part of a GPU comes by ResourceClaim, of shares that are delivered so."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from localcluster.kubectl import Object
from tests.cluster.harness import Harness, Share, Tenant, wait_until

SIZES = [{"name": "small", "threads": 10, "memory": "2Gi"}, {"name": "large", "threads": 50, "memory": "8Gi"}]
HELD = ("limits", "--hold", "3600")


def claim(name: str, device_class: str, capacity: dict[str, str] | None = None, **exactly: Any) -> Object:
    body: Object = {"deviceClassName": device_class, **exactly}
    if capacity:
        body["capacity"] = {"requests": capacity}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": body}]}},
    }


def with_claim(pod: Object, **source: str) -> Object:
    """The pod with a claim in place of the slot: `resourceClaimName` or `resourceClaimTemplateName`."""
    [container] = pod["spec"]["containers"]
    container["resources"] = {"claims": [{"name": "gpu"}]}
    pod["spec"]["resourceClaims"] = [{"name": "gpu", **source}]
    return pod


def sized(tenant: Tenant, name: str, share: str, size: str, *arguments: str, **options: Any) -> Object:
    pod = tenant.pod(name, share, *(arguments or HELD), **options)
    return with_claim(pod, resourceClaimTemplateName=f"{size}.{share}")


def claimed(tenant: Tenant, name: str, share: str, threads: str, memory: str, *arguments: str) -> Object:
    """A pod with a claim of its own name, which is made."""
    tenant.kubectl.create(claim(name, f"{share}.gpushare.dev", {"threads": threads, "memory": memory}))
    return with_claim(tenant.pod(name, share, *(arguments or HELD)), resourceClaimName=name)


def wait_template(tenant: Tenant, size: str, share: str) -> None:
    wait_until(f"the {size} template", lambda: tenant.kubectl.find("resourceclaimtemplate", f"{size}.{share}"))


@contextmanager
def tenant_of(share: Share) -> Iterator[Tenant]:
    """A namespace that has the share's template of the size `small`. Afterwards no claim is prepared on the node."""
    with share.harness.namespace(share.name) as tenant:
        wait_template(tenant, "small", share.name)
        yield tenant
    left = partial(claim_specs, share.harness)
    wait_until("nothing is prepared", lambda: not left(), 60, left)


def claim_specs(harness: Harness) -> list[str]:
    """The CDI specs of prepared claims on the node, one each."""
    return sorted(path.name for path in harness.in_node("/var/run/cdi").glob("gpushare.dev-claim-*"))
