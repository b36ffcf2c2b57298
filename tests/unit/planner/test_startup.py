"""What a new node's start-up taint waits for."""

from dataclasses import replace

import pytest

from gpushare.planner import NodeView
from gpushare.planner.startup import waits_for
from tests.unit.planner.conftest import Make

OFFERED = frozenset({"gpushare.dev/a"})
RESOURCES = {"a": "gpushare.dev/a"}


def test_a_node_that_serves_its_shares_waits_for_nothing(make: type[Make]) -> None:
    mine = [make.assigned("a", 0), make.assigned("b", 1)]
    node = make.node(assignments=mine, daemons=[make.daemon("a", 0), make.daemon("b", 1)], allocatable=OFFERED)
    assert waits_for(node, mine, RESOURCES) == "", "share b is delivered by claims: the kubelet offers nothing"


def test_a_node_of_no_share_waits_only_for_its_agents_report(make: type[Make]) -> None:
    assert waits_for(make.node(assignments=[]), [], {}) == ""
    assert "no GPU of it was reported" in waits_for(make.silent(make.node()), [], {})
    assert "no GPU of it was reported" in waits_for(make.node(gpus=0), [], {})


def test_a_gpu_that_leaves_its_share_keeps_no_node_closed(make: type[Make]) -> None:
    leaving = [make.assigned("a", draining=True)]
    assert waits_for(make.node(assignments=leaving), leaving, RESOURCES) == ""


MINE = [Make.assigned("a")]
DAEMONS = [Make.daemon("a")]
WAITING: dict[str, tuple[NodeView, str]] = {
    "assigned a moment ago": (Make.node(assignments=[], daemons=DAEMONS, allocatable=OFFERED), "not read yet"),
    "assignments that the agent has not seen": (
        Make.node(assignments=MINE, daemons=DAEMONS, allocatable=OFFERED, observed=1),
        "not read yet",
    ),
    "no daemon": (Make.node(assignments=MINE, allocatable=OFFERED), "is not verified"),
    "a daemon that is not ready": (
        Make.node(assignments=MINE, daemons=[Make.daemon("a", ready=False)], allocatable=OFFERED),
        "GPU GPU-n1-0 is not verified for share a yet",
    ),
    "the daemon of the share before": (
        Make.node(assignments=MINE, daemons=[Make.daemon("b")], allocatable=OFFERED),
        "is not verified",
    ),
    "slots that the kubelet does not offer": (Make.node(assignments=MINE, daemons=DAEMONS), "gpushare.dev/a"),
    "a silent agent": (
        Make.without_heartbeat(Make.node(assignments=MINE, daemons=DAEMONS, allocatable=OFFERED)),
        "no heartbeat",
    ),
}


@pytest.mark.parametrize("case", WAITING)
def test_a_node_stays_closed_with(case: str) -> None:
    node, reason = WAITING[case]
    assert reason in waits_for(node, MINE, RESOURCES)


def test_a_plan_names_the_nodes_whose_taint_may_go(make: type[Make]) -> None:
    share = make.share(gpus={"perNode": 1})
    daemons = [make.daemon("a", 0)]
    node = make.node(assignments=[make.assigned("a", 0)], daemons=daemons, allocatable=OFFERED)
    assert make.plan(share, replace(node, starting=True)).started == {"n1"}
    assert make.plan(share, node).started == frozenset(), "it has no such taint"
    assert make.plan(share, replace(node, starting=True, allocatable=frozenset())).started == frozenset()
