"""A driver that NVIDIA's GPU Operator replaces: shares let go of the node, and then the agent does."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpushare.planner import FleetPlan, NodeView, Snapshot, plan
from gpushare.planner.driver_upgrade import CLIENT_LABEL, LEAVING_STATES, STATE_LABEL
from gpushare.planner.model import EPOCH, MpsPod
from tests.unit.planner.conftest import Make

SHARE_LABEL = "share.gpushare.dev/a"
LEAVING = [{STATE_LABEL: state} for state in LEAVING_STATES] + [
    {CLIENT_LABEL: "paused-for-driver-upgrade"},
    {CLIENT_LABEL: "batch_paused-for-driver-upgrade", STATE_LABEL: "upgrade-done"},
]
STAYING = [
    {},
    {STATE_LABEL: ""},
    {STATE_LABEL: "upgrade-required"},
    {STATE_LABEL: "validation-required"},
    {STATE_LABEL: "uncordon-required"},
    {STATE_LABEL: "upgrade-done"},
    {STATE_LABEL: "upgrade-failed"},
    {CLIENT_LABEL: "true"},
    {CLIENT_LABEL: "false"},
]


def serving(labels: dict[str, str], **fields: object) -> NodeView:
    """One GPU, which share a has, with a verified daemon."""
    return Make.node(
        gpus=1,
        assignments=[Make.assigned("a")],
        daemons=[Make.daemon("a")],
        labels=labels | {SHARE_LABEL: "true"},
        **fields,  # type: ignore[arg-type]
    )


def empty(labels: dict[str, str]) -> NodeView:
    return Make.node(gpus=1, assignments=[], labels=labels)


def decide(node: NodeView, *pods: MpsPod, seconds: float = 0, **spec: object) -> FleetPlan:
    return plan(Snapshot((Make.share(**spec),), (node,), pods=pods, now=EPOCH + timedelta(seconds=seconds)))  # type: ignore[arg-type]


@pytest.mark.parametrize("labels", LEAVING, ids=str)
def test_while_a_driver_is_replaced_its_gpus_drain_and_none_is_taken(labels: dict[str, str]) -> None:
    decided = decide(serving(labels, held={(0, "a"): [0]}))
    assert decided.assignments["n1"] == (Make.assigned("a", draining=True),)
    assert decided.without_agent == frozenset(), "departures there are guarded to the last"
    (group,) = decided.reports["a"].counts.unavailable
    (key,) = labels.keys() & {CLIENT_LABEL} or labels.keys()
    assert group.reason == "DriverUpgrading"
    assert f"{key}={labels[key]}" in group.message
    assert decide(empty(labels)).assignments["n1"] == ()


@pytest.mark.parametrize("labels", STAYING, ids=str)
def test_a_node_keeps_its_gpus_before_and_after_its_driver_upgrade(labels: dict[str, str]) -> None:
    decided = decide(serving(labels, held={(0, "a"): [0]}))
    assert decided.assignments["n1"] == (Make.assigned("a"),)
    assert decided.without_agent == frozenset()


def test_clients_are_waited_for_up_to_max_wait() -> None:
    began = Make.assigned("a", draining=True)
    node = serving(LEAVING[0], held={(0, "a"): [0]})
    assert node.gpu_node is not None
    spec = node.gpu_node.spec.model_copy(update={"assignments": [began]})
    node = replace(node, gpu_node=node.gpu_node.model_copy(update={"spec": spec}))
    early, late = (decide(node, seconds=seconds, maxWait="1h").assignments["n1"] for seconds in (3599, 3600))
    assert [item.terminate_clients for item in (*early, *late)] == [False, True]
    assert not decide(node, seconds=1e6).assignments["n1"][0].terminate_clients, (
        "without maxWait, for as long as it takes"
    )


@pytest.mark.parametrize("labels", LEAVING, ids=str)
def test_the_agent_leaves_once_nothing_of_a_share_is_there(labels: dict[str, str]) -> None:
    pod = MpsPod("p", "uid", "a", "n1", "digest", EPOCH, deleting=True)
    assert decide(empty(labels)).without_agent == {"n1"}
    assert decide(empty(labels | {SHARE_LABEL: "true"})).without_agent == frozenset(), "its MPS pod is there, or comes"
    assert decide(empty(labels), pod).without_agent == frozenset(), "it still ends"
    assert decide(empty(labels), replace(pod, node="n2")).without_agent == {"n1"}


@pytest.mark.parametrize("labels", STAYING, ids=str)
def test_otherwise_an_agent_stays(labels: dict[str, str]) -> None:
    assert decide(empty(labels)).without_agent == frozenset()


def test_an_agent_takes_no_gpu_while_the_driver_is_validated() -> None:
    decided = decide(empty({STATE_LABEL: "validation-required"}))
    assert (decided.assignments["n1"], decided.without_agent) == ((), frozenset())
    assert decide(empty({STATE_LABEL: "uncordon-required"})).assignments["n1"] == (Make.assigned("a"),)


def test_an_agent_that_has_left_stays_away_until_the_driver_is_there() -> None:
    away = Make.without_heartbeat(empty(LEAVING[0]))
    assert decide(away).without_agent == {"n1"}
    assert decide(replace(away, labels=STAYING[5])).without_agent == frozenset()
