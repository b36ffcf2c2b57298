"""Who has fallen silent, as the Leases in gpushare's own namespace show it. Pure.

The operator tells which agents are silent, and nobody tells that of the operator. Both times are the API server's: when
it stored a Lease last, and when it answered. So clocks of nodes and users do not matter.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from gpushare.api.conditions import AGENT_REPORTING, EventReason
from gpushare.api.gpunode import GpuNode
from gpushare.api.meta import Condition
from gpushare.api.names import OPERATOR_LEASE
from gpushare.api.timestamps import format_timestamp, parse_timestamp
from gpushare.kube.resources import Object
from gpushare.kubectl.views.moments import duration

SILENT_SECONDS = 40
"""The agents' own figure (`heartbeat.LEASE_SECONDS`); the operator's Lease lasts 30 s."""
OPERATOR_SILENT = "OperatorSilent"


def operator_silence(leases: Iterable[Object], at: datetime) -> str:
    """What it means that no operator renews its Lease; empty where one does, or that is not known."""
    lease = next((lease for lease in leases if lease["metadata"]["name"] == OPERATOR_LEASE), None)
    written = _written(lease) if lease else None
    if written is None or (seconds := _seconds(written, at)) <= SILENT_SECONDS:
        return ""
    return (
        f"the operator has renewed no Lease for {duration(seconds)}, since {format_timestamp(written)}: what is said "
        "of shares may be as old, and no change is carried out; MPS daemons and their clients go on; kubectl gpushare "
        "check says more"
    )


def with_silent_agents(nodes: Sequence[GpuNode], leases: Iterable[Object], at: datetime) -> list[GpuNode]:
    """The nodes, those with an agent that renews no Lease as the operator would write them. For where it is silent."""
    written = {lease["metadata"]["name"]: moment for lease in leases if (moment := _written(lease))}
    return [_silent(node, written[node.name], at) if node.name in written else node for node in nodes]


def _silent(node: GpuNode, written: datetime, at: datetime) -> GpuNode:
    seconds = _seconds(written, at)
    if node.silence or seconds <= SILENT_SECONDS:
        return node
    condition = Condition(
        type=AGENT_REPORTING,
        status="Unknown",
        reason=EventReason.AGENT_SILENT,
        message=f"the agent has renewed no heartbeat for {duration(seconds)}: what is reported of this node may be old",
        last_transition_time=format_timestamp(written),
    )
    others = [known for known in node.status.conditions if known.type != AGENT_REPORTING]
    status = node.status.model_copy(update={"conditions": [*others, condition]})
    return node.model_copy(update={"status": status})


def _seconds(written: datetime, at: datetime) -> int:
    return int((at - written).total_seconds())


def _written(lease: Object) -> datetime | None:
    """When the API server stored it last."""
    times = [str(entry.get("time") or "") for entry in lease["metadata"].get("managedFields") or ()]
    try:
        return max(parse_timestamp(time) for time in times if time)
    except ValueError:
        return None
