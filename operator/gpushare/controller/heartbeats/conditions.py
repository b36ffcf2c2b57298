"""The conditions of a GpuNode, as its agent's heartbeat has them. Pure.

AgentReporting is the operator's own. The others are the agent's; while it is silent they say Unknown, as the node
controller does with a Node's, and the agent takes them back with its next status.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.api.conditions import AGENT_REPORTING, EventReason
from gpushare.api.gpunode import GpuNode
from gpushare.api.meta import Condition
from gpushare.api.names import LABEL_DRIVER_RELEASED
from gpushare.kube.client import Object
from gpushare.kube.coordination.heartbeat import Renewal

MESSAGE_LENGTH = 2048
"""Bound of the API on a condition's message."""


def is_due(gpu_node: GpuNode, reporting: bool) -> bool:
    """Tells whether the conditions in the API say something else."""
    known = gpu_node.agent_reporting
    return known is None or (known.status == "True") is not reporting


def is_contradicted(gpu_node: GpuNode) -> bool:
    """Tells whether a condition of a silent agent says True or False."""
    return any(item.status != "Unknown" for item in gpu_node.status.conditions)


def is_announced(gpu_node: Object, reporting: bool) -> bool:
    """Tells whether an event says so. `gpu_node`: as it was before. That a new node's agent reports is no news."""
    said = _own((gpu_node.get("status") or {}).get("conditions") or [])
    if reporting:
        return said is not None and said["status"] != "True"
    return said is None or said["status"] == "True"


@dataclass(frozen=True, slots=True)
class Silence:
    """`last`: the last heartbeat seen. `sent_away`: the operator keeps the agent off the node."""

    last: Renewal | None
    sent_away: bool = False

    @property
    def message(self) -> str:
        """What is known of a silent agent, and what it means."""
        if self.sent_away:
            return (
                f"the agent has left this node while its driver is replaced (label {LABEL_DRIVER_RELEASED}): no share "
                "has a GPU here, and what is reported of the node may be old"
            )
        since = f"since {self.last.time} (pod {self.last.holder})" if self.last is not None else "yet"
        return (
            f"the agent has renewed no heartbeat {since}: what is reported of this node may be old, no further pod "
            "starts on its GPUs, and clients of pods that are deleted here are not terminated in order; look at the "
            "agent's pod"
        )


def conditions(current: Sequence[Object], reporting: bool, silence: Silence, now: str) -> list[Object]:
    """What the GpuNode's conditions should be. `current`: as the API has them. `silence`: matters unless `reporting`.

    `now`: RFC 3339, for conditions whose status changes.
    """
    others = [item for item in current if item["type"] != AGENT_REPORTING]
    before = _own(current)
    if reporting:
        own = Condition(
            type=AGENT_REPORTING,
            status="True",
            reason=EventReason.AGENT_REPORTING,
            last_transition_time=_since(before, "True", now),
        )
        return [*others, own.wire()]
    own = Condition(
        type=AGENT_REPORTING,
        status="Unknown",
        reason=EventReason.AGENT_SILENT,
        message=silence.message,
        last_transition_time=_since(before, "Unknown", now),
    )
    return [*(_outdated(item, silence.last, now) for item in others), own.wire()]


def _own(current: Sequence[Object]) -> Object | None:
    return next((item for item in current if item["type"] == AGENT_REPORTING), None)


def _since(before: Object | None, status: str, now: str) -> str:
    return str(before["lastTransitionTime"]) if before is not None and before["status"] == status else now


def _outdated(item: Object, last: Renewal | None, now: str) -> Object:
    if item["status"] == "Unknown":
        return item
    said = " ".join(filter(None, (item["status"], f"({item['reason']})", item.get("message"))))
    when = f" until {last.time}" if last is not None else ""
    message = f"no news from the agent; it said{when}: {said}"
    return {
        **item,
        "status": "Unknown",
        "reason": EventReason.AGENT_SILENT.value,
        "message": message[:MESSAGE_LENGTH],
        "lastTransitionTime": now,
    }
