"""The limits of each client process: written once, for the operator's status and for the agent's daemon.json."""

from gpushare.api.gpunode import Limits
from gpushare.api.gpushare import GpuShare


def share(processes: int = 1, memory: dict[str, str] | None = None) -> GpuShare:
    clients = {
        "perGpu": 1,
        "processes": processes,
        "threads": {"default": 25, "max": 50},
        "memory": memory or {"default": "16Gi"},
    }
    return GpuShare.model_validate({"metadata": {"name": "a"}, "spec": {"clients": clients}})


def test_each_process_gets_its_part_of_the_largest_grant() -> None:
    assert share(processes=2).process_limits == Limits(threads=50, memory_mib=8192)
    assert share(memory={"default": "8Gi", "max": "12Gi"}).process_limits == Limits(threads=50, memory_mib=12288)


def test_a_memory_limit_is_never_below_one_mib() -> None:
    assert share(processes=60, memory={"default": "32Mi"}).process_limits.memory_mib == 1
