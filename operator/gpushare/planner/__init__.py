"""Which GPU belongs to which share, and each share's status: pure decisions on a snapshot of shares and nodes."""

from gpushare.fleet.model import FleetPlan, MpsPod, NodeView, RefusalVerdict, ShareReport, Snapshot, Template
from gpushare.fleet.plan import plan
from gpushare.fleet.selection.node_facts import FleetMemory

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
