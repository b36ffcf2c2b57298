"""Pods with slots as the API server shows them, and processes that NVML lists."""

from typing import Any

from gpushare.agent.observe.usage import ListedProcess, Usage
from gpushare.api.gpushare import GpuShare
from gpushare.grant.environment import client_environment
from gpushare.grant.model import Grant
from gpushare.process.procfs import Owner

UUID = "GPU-0"
GRANT = Grant("a", 25, 8192, 2)


def uid(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012d}"


def container_id(number: int) -> str:
    return f"{number:064x}"


def container(name: str = "app", share: str | None = "a", grant: Grant | None = GRANT) -> Any:
    limits = {f"gpushare.dev/{share}": "1"} if share else {}
    env = [{"name": key, "value": value} for key, value in client_environment(grant, None).items()] if grant else []
    return {"name": name, "resources": {"limits": limits}, "env": env}


def pod(number: int = 1, *containers: Any, with_status: bool = True, **metadata: Any) -> Any:
    """The n-th container's id is `container_id(number * 10 + n)`. `with_status`: whether its status shows them."""
    listed = containers or (container(),)
    statuses = [
        {
            "name": item["name"],
            "containerID": f"containerd://{container_id(number * 10 + position)}",
            "state": {"running": {}},
        }
        for position, item in enumerate(listed)
    ]
    return {
        "metadata": {"name": f"pod-{number}", "namespace": "team", "uid": uid(number), **metadata},
        "spec": {"containers": list(listed)},
        "status": {"containerStatuses": statuses if with_status else []},
    }


def owner(number: int = 1, position: int = 0) -> Owner:
    return Owner(uid(number), container_id(number * 10 + position))


def process(
    pid: int, memory_mib: int = 100, *owners: Owner, mps: bool = True, started: int = 100, host: bool = False
) -> ListedProcess:
    """A process of pod 1's first container by default."""
    return ListedProcess(pid, started, memory_mib, mps, () if host else owners or (owner(),))


def usage(*listed: ListedProcess, **fields: Any) -> Usage:
    """The usage of a container with a slot and GRANT: 8192 MiB for two processes."""
    values: dict[str, Any] = {
        "uuid": UUID,
        "share": "a",
        "pod_uid": uid(1),
        "namespace": "team",
        "pod": "pod-1",
        "container": "app",
        "container_id": container_id(10),
        "processes": listed,
        "slot": True,
        "grant": GRANT,
        "by_default": False,
        "taken_at": 100.0,
    }
    return Usage(**values | fields)


def share(name: str = "a", **spec: Any) -> GpuShare:
    clients = {"perGpu": 8, "threads": {"default": 25, "max": 50}, "memory": {"default": "16Gi"}}
    return GpuShare.model_validate({"metadata": {"name": name, "uid": "s"}, "spec": {"clients": clients, **spec}})
