"""Objects of the API server as models, and what several views say of them. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from gpushare.api.base import ApiModel
from gpushare.api.conditions import GPUS_EXCLUSIVE, ConditionType, DaemonReason, GpuReason
from gpushare.api.gpunode import DaemonStatus, Gpu, GpuNode
from gpushare.api.gpushare import Enforcement, GpuShare
from gpushare.api.meta import Condition
from gpushare.api.quantity import format_mib
from gpushare.kube.resources import Object
from gpushare.kubectl.failures import WrongInputError

Model = TypeVar("Model", bound=ApiModel)

DRAINING = "Draining"


def read(model: type[Model], items: Iterable[Object]) -> list[Model]:
    """Raises WrongInputError for an object that this release cannot read."""
    models = []
    for item in items:
        try:
            models.append(model.model_validate(item))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            name = item.get("metadata", {}).get("name", "")
            raise WrongInputError(
                f'{model.__name__} "{name}" cannot be read: {where}: {first["msg"]}; '
                "use the kubectl-gpushare of the operator's release"
            ) from None
    return models


def ready_condition(share: GpuShare) -> Condition | None:
    return next((condition for condition in share.status.conditions if condition.type == ConditionType.READY), None)


def troubles(node: GpuNode) -> Iterator[Condition]:
    """The conditions of a node that say what somebody has to mend: what its agent does not reach, what the API server
    refuses to take of it, and GPUs of shares that NVIDIA's parts offer, too."""
    for condition in node.status.conditions:
        is_reached = condition.type.endswith("Reachable") or condition.type == ConditionType.WRITES_ACCEPTED
        twice = condition.reason in (GpuReason.HELD_BY_NVIDIA_PLUGIN, GpuReason.HELD_BY_NVIDIA_DRA)
        if condition.status != "True" and (is_reached or (condition.type == GPUS_EXCLUSIVE and twice)):
            yield condition


def memory_limits(share: GpuShare) -> str:
    """How far its clients may borrow, in words; empty: not at all."""
    limits = share.limits_memory
    if limits is None:
        return ""
    most, percent = format_mib(share.memory_limit_max_mib), limits.overcommit_percent
    together = f"those of a GPU are at most {percent}% of its memory together"
    grace = f" after {limits.grace_period}" if limits.when_short is Enforcement.TERMINATE else ""
    default = "" if share.by_claims else f"{limits.default or 'what is reserved'} by default, "
    return f"{default}{most} at most; {together}; when it is short: {limits.when_short}{grace}"


def gpu_state(gpu: Gpu, daemon: DaemonStatus | None, node: GpuNode) -> str:
    """One word: Free, Lost, Unknown where the agent is silent, Draining while the GPU leaves its share, or the reason
    of its MPS daemon."""
    if node.silence:
        return "Unknown"
    if gpu.lost:
        return "Lost"
    if daemon is None:
        return "Free"
    # Limits that change are for new clients, of which a GPU that leaves takes none.
    serves = daemon.ready or daemon.reason == DaemonReason.LIMITS_NOT_IN_FORCE
    return DRAINING if serves and is_leaving(daemon, node) else daemon.reason or "Unknown"


def is_leaving(daemon: DaemonStatus, node: GpuNode) -> bool:
    """Whether the GPU is to leave the share that its daemon serves. Where the operator has not said, it stays."""
    if node.spec.assignments is None:
        return False
    assigned = next((item for item in node.spec.assignments if item.uuid == daemon.uuid), None)
    return assigned is None or assigned.share != daemon.share or assigned.draining


def is_true(obj: Mapping[str, Any], condition: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return any(item.get("type") == condition and item.get("status") == "True" for item in conditions)


def created(obj: Mapping[str, Any]) -> str | None:
    moment: str | None = obj["metadata"].get("creationTimestamp")
    return moment
