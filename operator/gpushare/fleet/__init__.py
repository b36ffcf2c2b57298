"""Which GPU belongs to which share, and what to tell of it: pure decisions on a snapshot of shares and nodes."""

from gpushare.fleet.model import MpsPod, NodeView, Plan, ShareReport, Snapshot, Template, Verdict
from gpushare.fleet.plan import plan

__all__ = ["MpsPod", "NodeView", "Plan", "ShareReport", "Snapshot", "Template", "Verdict", "plan"]
