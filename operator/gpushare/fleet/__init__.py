"""Which GPU belongs to which share, and what to tell of it: pure decisions on a snapshot of shares and nodes."""

from gpushare.fleet.model import NodeView, Plan, ShareReport, Snapshot, Verdict
from gpushare.fleet.plan import plan

__all__ = ["NodeView", "Plan", "ShareReport", "Snapshot", "Verdict", "plan"]
