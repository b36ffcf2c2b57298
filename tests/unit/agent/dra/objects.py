"""Claims, pods and a share as the API server shows them."""

from typing import Any

from gpushare.api.gpushare import GpuShare

UID = "11111111-2222-3333-4444-555555555555"
POD_UID = "99999999-2222-3333-4444-555555555555"
DEVICE = "gpu-0"


def share(name: str = "a", **spec: Any) -> GpuShare:
    clients = {"perGpu": 8, "threads": {"default": 20, "max": 60}, "memory": {"default": "4Gi", "max": "64Gi"}}
    body = {"clients": clients, "delivery": "ResourceClaim", **spec}
    return GpuShare.model_validate({"metadata": {"name": name, "uid": "s"}, "spec": body})


"""What admission makes of a container that says nothing about its user."""


def result(request: str = "gpu", **fields: Any) -> dict[str, Any]:
    consumed = {"threads": "10", "memory": "2Gi", "clients": "1"}
    base = {"request": request, "driver": "gpushare.dev", "pool": "n", "device": DEVICE, "shareID": f"id-{request}"}
    return {**base, "consumedCapacity": consumed, **fields}


def claim(*results: dict[str, Any], name: str = "c", uid: str = UID, by_scheduler: bool = False, **status: Any) -> Any:
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"} if by_scheduler else {}
    users = [{"resource": "pods", "name": "p", "uid": POD_UID}]
    devices = {"results": list(results or (result(),))}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": uid, "annotations": annotations},
        "spec": {},
        "status": {"reservedFor": users, "allocation": {"devices": devices}, **status},
    }


def pod(*containers: dict[str, Any], claims: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    """`claims`: ResourceClaims by the name that the pod's spec gives them."""
    listed = [
        {"name": key, "resourceClaimName": value} for key, value in ({"gpu": "c"} if claims is None else claims).items()
    ]
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": POD_UID},
        "spec": {"containers": list(containers or (container(),)), "resourceClaims": listed},
        "status": status,
    }


HOOK = {"preStop": {"sleep": {"seconds": 2}}}
"""What the webhook adds."""


def container(name: str = "app", *claims: str, env: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    used = [{"name": item} for item in claims or ("gpu",)]
    listed = [{"name": key, "value": value} for key, value in (env or {}).items()]
    return {"name": name, "resources": {"claims": used}, "env": listed, "lifecycle": HOOK, **fields}


def slot_pod(env: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Containers with a slot each, whose claim "slots" the scheduler made; `env`: by container, of admission."""
    mappings = [
        {"containerName": name, "resourceName": "gpushare.dev/a", "requestName": f"container-{number}-request-0"}
        for number, name in enumerate(env)
    ]
    containers = [
        {
            "name": name,
            "resources": {"limits": {"gpushare.dev/a": "1"}},
            "lifecycle": HOOK,
            "env": [{"name": key, "value": value} for key, value in variables.items()],
        }
        for name, variables in env.items()
    ]
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "slots", "requestMappings": mappings}}
    return {**pod(*containers, claims={}), "status": status}
