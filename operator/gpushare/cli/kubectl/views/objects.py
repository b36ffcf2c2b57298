"""Objects of the API server as models, and what several views say of them. Pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from gpushare.api.base import ApiModel
from gpushare.api.conditions import ConditionType
from gpushare.api.gpunode import DaemonStatus, Gpu, GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.api.meta import Condition
from gpushare.api.timestamps import parse_timestamp
from gpushare.cli.kubectl.wrong import WrongInputError
from gpushare.kube.resources import Object

Model = TypeVar("Model", bound=ApiModel)


def read(model: type[Model], items: Iterable[Object]) -> list[Model]:
    """Raises WrongInputError for an object that this release cannot read."""
    found = []
    for item in items:
        try:
            found.append(model.model_validate(item))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            name = item.get("metadata", {}).get("name", "")
            raise WrongInputError(
                f'{model.__name__} "{name}" cannot be read: {where}: {first["msg"]}; '
                "use the kubectl-gpushare of the operator's release"
            ) from None
    return found


def ready_condition(share: GpuShare) -> Condition | None:
    return next((it for it in share.status.conditions if it.type == ConditionType.READY), None)


def gpu_state(gpu: Gpu, daemon: DaemonStatus | None, node: GpuNode) -> str:
    """In a word: Free, Lost, Unknown where the agent is silent, or the reason of the GPU's MPS daemon."""
    if node.silence:
        return "Unknown"
    if gpu.lost:
        return "Lost"
    return daemon.reason or "Unknown" if daemon else "Free"


def age(moment: str | None, now: datetime) -> str:
    """As kubectl writes it, such as 4m12s, 3h or 12d; empty where the moment is not known."""
    if not moment:
        return ""
    seconds = max(0, int((now - parse_timestamp(moment)).total_seconds()))
    if seconds < 120:
        return f"{seconds}s"
    if seconds < 600:
        return f"{seconds // 60}m{seconds % 60}s"
    if seconds < 2 * 3600:
        return f"{seconds // 60}m"
    return f"{seconds // 3600}h" if seconds < 48 * 3600 else f"{seconds // 86400}d"


def is_true(obj: Mapping[str, Any], condition: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return any(it.get("type") == condition and it.get("status") == "True" for it in conditions)


def created(obj: Mapping[str, Any]) -> str | None:
    moment: str | None = obj["metadata"].get("creationTimestamp")
    return moment


def now() -> datetime:
    return datetime.now(UTC)
