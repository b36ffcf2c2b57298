"""Which GPU belongs to which share, and each share's status: pure decisions on a snapshot of shares and nodes."""

from gpushare.fleet.model import FleetPlan, MpsPod, NodeView, RefusalVerdict, ShareReport, Snapshot, Template
from gpushare.fleet.plan import plan

__all__ = ["MpsPod", "NodeView", "FleetPlan", "ShareReport", "Snapshot", "Template", "RefusalVerdict", "plan"]
