"""The operator's metrics: each share by the last plan, which replica leads, and the rounds and writes.

Only the active replica knows the fleet; any other exports that it does not lead, and nothing about shares. `share` is a
GpuShare's name, so there are as many series as shares, times the reasons that hold.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram

from gpushare.api.conditions import ConditionType
from gpushare.controller.writes import Write
from gpushare.metrics.exported import Exported
from gpushare.metrics.families import Family, Sample
from gpushare.planner import ShareReport

SHARE = ("share",)

LEADER = Family("gpushare_operator_leader", "1 in the replica that leads, which holds the Lease; else 0.")
AGENT = Family(
    "gpushare_agent_reporting",
    "1 while the agent of the node renews its heartbeat, 0 once it has not for 40 s: departures there are unguarded.",
    ("node",),
)
CONDITION = Family(
    "gpushare_share_condition", "1 if the condition of the GpuShare is True, else 0.", ("share", "condition")
)
REASON = Family(
    "gpushare_share_reason", "1 for the reason of the condition Ready (docs/reasons.md).", ("share", "reason")
)
MATCHING = Family("gpushare_share_gpus_matching", "GPUs that the share's selectors match.", SHARE)
ASSIGNED = Family("gpushare_share_gpus_assigned", "GPUs that belong to the share.", SHARE)
READY = Family("gpushare_share_gpus_ready", "Assigned GPUs whose MPS daemon is verified.", SHARE)
DRAINING = Family("gpushare_share_gpus_draining", "Assigned GPUs that leave the share once idle.", SHARE)
UNAVAILABLE = Family(
    "gpushare_share_gpus_unavailable",
    "GPUs that cannot be taken, by reason; of other products only where none matches (docs/reasons.md).",
    ("share", "reason"),
)
SLOTS = Family("gpushare_share_slots", "Slots on the share's ready GPUs.", SHARE)
USED = Family("gpushare_share_slots_held", "Slots of the share that containers hold.", SHARE)
CLAIMS = Family("gpushare_share_claims_allocated", "ResourceClaims that have a part of a GPU of the share.", SHARE)
PENDING = Family("gpushare_share_claims_pending", "ResourceClaims of the share that have no part of a GPU yet.", SHARE)

FAMILIES = (
    LEADER, AGENT, CONDITION, REASON, MATCHING, ASSIGNED, READY, DRAINING, UNAVAILABLE, SLOTS, USED, CLAIMS, PENDING,
)  # fmt: skip

ROUND_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """`agents`: by node, whether its agent reports."""

    leads: bool
    reports: Mapping[str, ShareReport]
    agents: Mapping[str, bool] = field(default_factory=dict)


def samples(taken: FleetSnapshot) -> Iterator[Sample]:
    yield LEADER.of(taken.leads)
    for node, reports in taken.agents.items():
        yield AGENT.of(reports, node)
    for share, report in taken.reports.items():
        for verdict in report.verdicts:
            yield CONDITION.of(verdict.status == "True", share, verdict.type.value)
            if verdict.type is ConditionType.READY:
                yield REASON.of(1, share, verdict.reason.value)
        counts = report.counts
        yield MATCHING.of(counts.gpus.matching, share)
        yield ASSIGNED.of(counts.gpus.assigned, share)
        yield READY.of(counts.gpus.ready, share)
        yield DRAINING.of(counts.gpus.draining, share)
        yield SLOTS.of(counts.slots.total, share)
        yield USED.of(counts.slots.used, share)
        if counts.claims is not None:
            yield CLAIMS.of(counts.claims.allocated, share)
            yield PENDING.of(counts.claims.pending, share)
        for group in counts.unavailable:
            yield UNAVAILABLE.of(group.count, share, group.reason)


def export(take: Callable[[], FleetSnapshot]) -> tuple[Exported, "OperatorMeters"]:
    """All metrics of an operator. `take` is called in the event loop."""
    exported = Exported("operator")
    exported.snapshot(FAMILIES, take, samples)
    return exported, OperatorMeters(exported.registry)


class OperatorMeters:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._rounds = Histogram(
            "gpushare_reconcile_duration_seconds",
            "One round: a snapshot of the fleet, the plan, and what differs from it; without the writes that follow.",
            buckets=ROUND_BUCKETS,
            registry=registry,
        )
        self._errors = Counter(
            "gpushare_reconcile_errors", "Rounds that ended in an error before their writes.", registry=registry
        )
        self._writes = Counter(
            "gpushare_writes",
            "Writes to the API server by resource and verb; result is ok, failed, or conflict: the object had changed "
            "since the plan. What was not ok is tried again.",
            ["resource", "verb", "result"],
            registry=registry,
        )

    @contextmanager
    def round(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except Exception:
            self._errors.inc()
            raise
        finally:
            self._rounds.observe(time.monotonic() - began)

    def wrote(self, write: Write, result: Literal["ok", "failed", "conflict"]) -> None:
        resource = f"{write.resource.plural}/{write.subresource}" if write.subresource else write.resource.plural
        self._writes.labels(resource, write.verb, result).inc()
