"""Which GPU belongs to which share, and each share's status: pure decisions on a snapshot of shares and nodes."""

from gpushare.planner.model import (
    FleetPlan,
    MpsPod,
    NodeView,
    RefusalVerdict,
    ShareReport,
    Snapshot,
    Template,
)
from gpushare.planner.plan import plan
from gpushare.planner.selection.node_facts import FleetMemory

__all__ = [
    "FleetMemory",
    "MpsPod",
    "NodeView",
    "FleetPlan",
    "ShareReport",
    "Snapshot",
    "Template",
    "RefusalVerdict",
    "plan",
]
