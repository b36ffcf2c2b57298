"""Shares, nodes and GPUs for tests, as short as the sentence that a test proves."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.api.gpunode import Assignment, DaemonStatus, Gpu, GpuNode, Holder, Limits
from gpushare.api.gpushare import GpuShare
from gpushare.api.meta import Condition
from gpushare.api.names import FINALIZER
from gpushare.planner import FleetPlan, NodeView, RefusalVerdict, Snapshot, plan

LIMITS = Limits(threads=50, memory_mib=16384)


class Make:
    """Builders; every argument has a value with which a share simply gets its GPUs."""

    limits = LIMITS

    @staticmethod
    def share(
        name: str = "a", *, age: int = 0, deleting: bool = False, finalizer: bool = True, **spec: Any
    ) -> GpuShare:
        clients = {"perGpu": 8, "threads": {"default": 25, "max": 50}, "memory": {"default": "16Gi"}}
        return GpuShare.model_validate(
            {
                "metadata": {
                    "name": name,
                    "uid": f"uid-{name}",
                    "generation": 3,
                    "creationTimestamp": f"2026-01-01T00:00:{59 - age:02}Z",
                    "deletionTimestamp": "2026-02-01T00:00:00Z" if deleting else None,
                    "finalizers": [FINALIZER] if finalizer else [],
                },
                "spec": {"clients": clients | spec.pop("clients", {}), **spec},
            }
        )

    @staticmethod
    def gpu(index: int = 0, node: str = "n1", **fields: Any) -> Gpu:
        values = {
            "uuid": f"GPU-{node}-{index}",
            "index": index,
            "minor": index,
            "product": "NVIDIA H200",
            "memory_mib": 143155,
            "sms": 132,
            "compute_capability": "9.0",
            "compute_mode": "Default",
        }
        return Gpu.model_validate(values | fields)

    @staticmethod
    def daemon(share: str, index: int = 0, node: str = "n1", **fields: Any) -> DaemonStatus:
        values = {
            "uuid": f"GPU-{node}-{index}",
            "share": share,
            "ready": True,
            "reason": "Ready",
            "desiredLimits": LIMITS,
            "current_limits": LIMITS,
        }
        return DaemonStatus.model_validate(values | fields)

    @classmethod
    def node(
        cls,
        name: str = "n1",
        *,
        gpus: int | list[Gpu] = 2,
        assignments: list[Assignment] | None = None,
        daemons: list[DaemonStatus] | None = None,
        held: dict[tuple[int, str], list[int]] | None = None,
        generation: int = 2,
        observed: int = 2,
        status: dict[str, Any] | None = None,
        labels: dict[str, str] | None = None,
        ready: bool = True,
        allocatable: frozenset[str] = frozenset(),
    ) -> NodeView:
        """`held`: {(GPU index, share): slots}."""
        listed = [cls.gpu(index, name) for index in range(gpus)] if isinstance(gpus, int) else gpus
        holders = [
            Holder(uuid=f"GPU-{name}-{index}", share=share, slots=slots)
            for (index, share), slots in (held or {}).items()
        ]
        gpu_node = GpuNode.model_validate(
            {
                "metadata": {"name": name, "generation": generation},
                "spec": {"assignments": assignments},
                "status": {
                    "observedGeneration": observed,
                    "gpus": listed,
                    "daemons": daemons or [],
                    "holders": holders,
                    **(status or {}),
                },
            }
        )
        return NodeView(name, labels or {}, ready, allocatable, gpu_node)

    @staticmethod
    def silent(node: NodeView) -> NodeView:
        """The node as it looks while it has no GpuNode."""
        return replace(node, gpu_node=None)

    @staticmethod
    def without_heartbeat(node: NodeView, status: str = "Unknown") -> NodeView:
        """The node as it looks once its agent was found to be silent; `status`: of its condition AgentReporting."""
        assert node.gpu_node is not None
        condition = Condition(
            type="AgentReporting",
            status=status,  # type: ignore[arg-type]
            reason="AgentSilent",
            message="no heartbeat since 9:00",
            last_transition_time="2026-01-01T00:00:00Z",
        )
        said = node.gpu_node.status.model_copy(update={"conditions": [condition]})
        return replace(node, gpu_node=node.gpu_node.model_copy(update={"status": said}))

    @staticmethod
    def assigned(share: str, index: int = 0, node: str = "n1", draining: bool = False) -> Assignment:
        since = "1970-01-01T00:00:00Z" if draining else None
        return Assignment(uuid=f"GPU-{node}-{index}", share=share, draining=draining, waiting_since=since)

    @staticmethod
    def plan(*parts: GpuShare | NodeView, dra: frozenset[str] = frozenset()) -> FleetPlan:
        shares = tuple(part for part in parts if isinstance(part, GpuShare))
        nodes = tuple(part for part in parts if isinstance(part, NodeView))
        return plan(Snapshot(shares, nodes, dra))

    @staticmethod
    def told(decided: FleetPlan, share: str = "a") -> dict[str, RefusalVerdict]:
        return {str(verdict.type): verdict for verdict in decided.reports[share].verdicts}


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make
