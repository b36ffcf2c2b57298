"""Outdated MPS pods: which wait, which are replaced, and what stops them all."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.gpunode import Assignment
from gpushare.planner import FleetPlan, MpsPod, NodeView, Snapshot, Template, plan
from gpushare.planner.model import EPOCH

NOW = EPOCH + timedelta(days=1)
LONG_AGO = NOW - timedelta(hours=1)
STAMP = "1970-01-02T00:00:00Z"
HOUR_AGO = "1970-01-01T23:00:00Z"


def pod(node: str = "n1", template: str = "old", **fields: Any) -> MpsPod:
    return MpsPod(f"mps-{node}", f"uid-{node}-{template}", "a", node, template, fields.pop("since", LONG_AGO), **fields)


def assigned(node: str = "n1", **fields: Any) -> Assignment:
    return Assignment(uuid=f"GPU-{node}-0", share="a", **fields)


def having(node: str, used: int) -> dict[str, Any]:
    """Places of the node's GPU, of which some are used, and for which others wait."""
    held = [f"ml/has-{number}/app" for number in range(used)]
    queue = ["ml/waits/app"]
    return {
        "uuid": f"GPU-{node}-0", "share": "a", "limit": 4, "used": used, "waiting": 1, "held": held, "queue": queue
    }  # fmt: skip


class Fleet:
    """Nodes with one GPU of share a each."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self.parts: list[tuple[NodeView, MpsPod | None]] = []
        self.observed = True

    def node(
        self,
        name: str = "n1",
        pod: MpsPod | None = None,
        *,
        assignment: Assignment | None = None,
        daemon: dict[str, Any] | None = None,
        held: bool = False,
        places: int | None = None,
        ready: bool = True,
        observed: int = 2,
    ) -> "Fleet":
        make = self.make
        holders = [{"uuid": f"GPU-{name}-0", "share": "a", "slots": [0], "pods": ["ml/x"]}] if held else []
        node = make.node(
            name,
            gpus=1,
            assignments=[assignment or assigned(name)],
            daemons=[make.daemon("a", 0, name, **{"server_pid": 77} | (daemon or {}))],
            status={"holders": holders, "places": [] if places is None else [having(name, places)]},
            ready=ready,
            observed=observed,
        )
        self.parts.append((node, pod))
        return self

    def snapshot(self, **spec: Any) -> Snapshot:
        nodes = tuple(node for node, _ in self.parts)
        pods = tuple(pod for _, pod in self.parts if pod is not None)
        templates = {"a": Template("new", self.observed)}
        return Snapshot((self.make.share(**spec),), nodes, pods=pods, templates=templates, now=NOW)

    def plan(self, **spec: Any) -> FleetPlan:
        return plan(self.snapshot(**spec))

    def condition(self, **spec: Any) -> tuple[str, str, str]:
        verdict = self.make.told(self.plan(**spec))["DaemonsCurrent"]
        return verdict.status, verdict.reason, verdict.message


@pytest.fixture
def fleet(make: Any) -> Fleet:
    return Fleet(make)


WITHDRAWN = {"assignment": assigned(paused=True, waiting_since=STAMP), "daemon": {"drained": True}}
EXPIRED = assigned(paused=True, terminate_clients=True, waiting_since=HOUR_AGO)
STEPS: dict[str, tuple[dict[str, Any], dict[str, Any], Assignment, bool]] = {
    "a busy GPU goes on taking pods while its outdated daemon waits": (
        {"held": True}, {}, assigned(waiting_since=STAMP), False),
    "one seen to be idle is withdrawn first": (
        {}, {}, assigned(paused=True, waiting_since=STAMP), False),
    "its pod is deleted once the node confirms": (
        WITHDRAWN, {}, assigned(paused=True, waiting_since=STAMP), True),
    "but not by news from before the withdrawal": (
        WITHDRAWN | {"observed": 1}, {}, assigned(paused=True, waiting_since=STAMP), False),
    "a pod that came in before the withdrawal ends the attempt": (
        WITHDRAWN | {"held": True, "daemon": {}}, {}, assigned(waiting_since=STAMP), False),
    "with a queue a container that only waits holds up nothing": (
        {"held": True, "places": 0}, {}, assigned(paused=True, waiting_since=STAMP), False),
    "and survives the new pod": (
        WITHDRAWN | {"held": True, "places": 0}, {}, assigned(paused=True, waiting_since=STAMP), True),
    "who has a place is waited for": (
        {"held": True, "places": 1}, {}, assigned(waiting_since=STAMP), False),
    "and ends the attempt, where it got one before the GPU was closed": (
        WITHDRAWN | {"held": True, "places": 1, "daemon": {}}, {}, assigned(waiting_since=STAMP), False),
    "while the old pod ends nothing is offered": (
        {"pod": pod(deleting=True)}, {}, assigned(paused=True, waiting_since=STAMP), False),
    "maxWait that is not over yet changes nothing": (
        {"held": True, "assignment": assigned(waiting_since=HOUR_AGO)}, {"maxWait": "61m"},
        assigned(waiting_since=HOUR_AGO), False),
    "once it is over free slots are withdrawn and clients ended": (
        {"held": True, "assignment": assigned(waiting_since=HOUR_AGO)}, {"maxWait": "1h"}, EXPIRED, False),
    "and the pod is deleted once the node has seen that, whoever holds a slot": (
        {"held": True, "assignment": EXPIRED}, {"maxWait": "1h"}, EXPIRED, True),
    "not before the node has seen it": (
        {"held": True, "assignment": EXPIRED, "observed": 1}, {"maxWait": "1h"}, EXPIRED, False),
    "a maxWait that was taken back spares the clients that are left": (
        {"held": True, "assignment": EXPIRED}, {}, assigned(waiting_since=HOUR_AGO), False),
    "maxWait ends nobody on an idle GPU": (
        {"assignment": assigned(waiting_since=HOUR_AGO)}, {"maxWait": "1h"},
        assigned(paused=True, waiting_since=HOUR_AGO), False),
    "a pod whose container does not run has no clients and goes at once": (
        {"held": True, "pod": pod(running=False)}, {}, assigned(waiting_since=STAMP), True),
    "so does one whose daemon has no server": (
        {"held": True, "daemon": {"ready": False, "server_pid": None}}, {}, assigned(waiting_since=STAMP), True),
    "a daemon that is not ready but has a server may have clients": (
        {"held": True, "daemon": {"ready": False}}, {}, assigned(waiting_since=STAMP), False),
    "a node that is not Ready is left alone": (
        {"ready": False}, {}, assigned(waiting_since=STAMP), False),
    "a pod of the present template is left alone": (
        {"pod": pod(template="new")}, {}, assigned(), False),
    "it is offered again once its pod is new": (
        {"pod": pod(template="new", since=NOW), "assignment": assigned(paused=True, waiting_since=STAMP)}, {},
        assigned(), False),
}  # fmt: skip


@pytest.mark.parametrize(("state", "spec", "wanted", "deleted"), STEPS.values(), ids=STEPS)
def test_step(fleet: Fleet, state: dict[str, Any], spec: dict[str, Any], wanted: Assignment, deleted: bool) -> None:
    decided = fleet.node(**{"pod": pod()} | state).plan(**spec)
    assert decided.assignments["n1"] == (wanted,)
    assert bool(decided.replaced) is deleted


def test_a_wait_that_the_time_of_day_made_longer_is_not_over(fleet: Fleet) -> None:
    snapshot = fleet.node(pod=pod(), held=True, assignment=assigned(waiting_since=HOUR_AGO)).snapshot(maxWait="1h")
    set_since = replace(snapshot, jumps={("GPU-n1-0", HOUR_AGO): timedelta(hours=1)})
    assert plan(set_since).assignments["n1"] == (assigned(waiting_since=STAMP),)


def test_a_rollout_waits_for_the_daemon_set_controller(fleet: Fleet) -> None:
    fleet.observed = False
    assert fleet.node(pod=pod()).plan().assignments["n1"] == (assigned(waiting_since=STAMP),)


def test_a_share_that_is_being_deleted_replaces_nothing(fleet: Fleet) -> None:
    decided = fleet.node(pod=pod()).plan(deleting=True)
    assert (decided.replaced, decided.assignments["n1"][0].paused) == ((), False)


def test_the_first_pod_is_replaced_alone(fleet: Fleet) -> None:
    for name in ("n1", "n2", "n3"):
        fleet.node(name, pod(name))
    decided = fleet.plan()
    assert [decided.assignments[name][0].paused for name in ("n1", "n2", "n3")] == [True, False, False]


NEXT: dict[str, tuple[MpsPod, dict[str, Any], bool]] = {
    "one that is verified lets the next begin": (pod("n1", "new"), {}, True),
    "one that runs but a moment does not": (pod("n1", "new", since=NOW - timedelta(seconds=14)), {}, False),
    "nor one whose agent, away meanwhile, has not seen what changed with it": (
        pod("n1", "new", since=NOW - timedelta(seconds=40)), {"observed": 1}, False),
    "one that ran for long does, whatever is assigned now": (pod("n1", "new"), {"observed": 1}, True),
    "nor one whose daemon is not ready": (pod("n1", "new"), {"daemon": {"ready": False}}, False),
    "one whose GPU is lost says nothing of the template": (
        pod("n1", "new"), {"daemon": {"ready": False, "reason": "GpuLost"}}, True),
    "nor one whose container does not run": (pod("n1", "new", running=False), {}, False),
    "nor one that ends": (pod("n1", "old", deleting=True), {}, False),
    "one on a node that is not Ready holds up nobody": (pod("n1", "new"), {"ready": False}, True),
}  # fmt: skip


@pytest.mark.parametrize(("first", "state", "begins"), NEXT.values(), ids=NEXT)
def test_after_the_first(fleet: Fleet, first: MpsPod, state: dict[str, Any], begins: bool) -> None:
    decided = fleet.node("n1", first, **state).node("n2", pod("n2")).plan()
    assert decided.assignments["n2"][0].paused is begins


def test_with_one_proven_a_tenth_goes_on_at_a_time_idle_nodes_first(fleet: Fleet) -> None:
    fleet.node("n00", pod("n00", "new"))
    for number in range(1, 30):
        name = f"n{number:02}"
        fleet.node(name, pod(name), held=number < 20)
    decided = fleet.plan()
    assert [name for name, (item,) in decided.assignments.items() if item.paused] == ["n20", "n21", "n22"]


def test_what_failed_is_replaced_first_when_the_template_changes_again(fleet: Fleet) -> None:
    fleet.node("n1", pod("n1"))
    fleet.node("n2", pod("n2", "bad", running=False, trouble="ImagePullBackOff", stuck=True), held=True)
    decided = fleet.plan()
    assert [pod.node for pod in decided.replaced] == ["n2"]
    assert not decided.assignments["n1"][0].paused


FAILED: dict[str, tuple[MpsPod, dict[str, Any], str]] = {
    "an image that cannot be pulled": (
        pod("n1", "new", running=False, stuck=True, trouble="ImagePullBackOff: not found"), {},
        "the new MPS pod mps-n1 of node n1 does not come up: ImagePullBackOff: not found; the 1 older ones stay",
    ),
    "daemons that are not verified for 5 minutes": (
        pod("n1", "new", since=NOW - timedelta(minutes=5)),
        {"daemon": {"ready": False, "reason": "DaemonFailed", "message": "no such flag"}},
        "GPU GPU-n1-0: DaemonFailed: no such flag",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("first", "state", "words"), FAILED.values(), ids=FAILED)
def test_it_stops_at(fleet: Fleet, first: MpsPod, state: dict[str, Any], words: str) -> None:
    withdrawn = assigned("n2", paused=True, waiting_since=STAMP)
    fleet.node("n1", first, **state).node("n2", pod("n2"), assignment=withdrawn, daemon={"drained": True})
    decided = fleet.plan()
    assert decided.replaced == ()
    assert not decided.assignments["n2"][0].paused, "what was withdrawn is offered again"
    status, reason, message = fleet.condition()
    assert (status, reason) == ("False", "RolloutStopped")
    assert words in message


def test_the_condition_says_what_a_rollout_waits_for(fleet: Fleet) -> None:
    fleet.node(pod=pod(), held=True, assignment=assigned(waiting_since=HOUR_AGO))
    assert fleet.condition() == (
        "False",
        "WaitingForClients",
        "1 of 1 MPS pod is outdated; node n1 waits since 1970-01-01T23:00:00Z, for ever, since the share has no "
        "maxWait, for 1 pod to end (GpuNode.status.holders names it)",
    )
    assert "until 1970-01-02T01:00:00Z at most, for 1 pod" in fleet.condition(maxWait="2h")[2]
    assert fleet.plan(maxWait="2h").again_at == NOW + timedelta(hours=1)


def test_the_condition_tells_of_a_roll_out_under_way_and_of_its_end(fleet: Fleet) -> None:
    assert Fleet(fleet.make).node(pod=pod()).condition()[:2] == ("False", "RollingOut")
    assert Fleet(fleet.make).node(pod=pod("n1", "new")).condition()[:2] == ("True", "DaemonsCurrent")


def test_with_a_queue_a_rollout_names_those_who_have_a_place(fleet: Fleet) -> None:
    fleet.node("n1", pod(), held=True, places=2)
    assert "for 2 pods to end (GpuNode.status.places names them)" in fleet.condition()[2]


def test_waiting_for_clients_leaves_the_share_ready(fleet: Fleet) -> None:
    decided = fleet.node(pod=pod(), held=True).plan()
    assert fleet.make.told(decided)["Ready"].status == "True"


@given(data=st.data())
def test_whatever_the_fleet_nobody_is_replaced_who_may_have_clients(make: Any, data: st.DataObject) -> None:
    fleet = Fleet(make)
    flags = st.fixed_dictionaries({"paused": st.booleans(), "terminate_clients": st.booleans()})
    for number in range(data.draw(st.integers(1, 5))):
        name = f"n{number}"
        template = data.draw(st.sampled_from(["old", "new"]))
        fields = {key: data.draw(st.booleans()) for key in ("deleting", "running", "stuck")}
        daemon = {"ready": data.draw(st.booleans()), "drained": data.draw(st.booleans())}
        fleet.node(
            name,
            pod(name, template, **fields),
            assignment=assigned(name, **data.draw(flags), waiting_since=data.draw(st.sampled_from([None, HOUR_AGO]))),
            daemon=daemon,
            held=data.draw(st.booleans()),
            observed=data.draw(st.integers(1, 2)),
        )
    max_wait = data.draw(st.sampled_from([None, "1h", "2h"]))
    spec = {"maxWait": max_wait} if max_wait else {}
    decided = fleet.plan(**spec)
    nodes = {node.name: node for node, _ in fleet.parts}
    for gone in decided.replaced:
        assert gone.template == "old"
        node = nodes[gone.node].gpu_node
        assert node is not None
        (item,) = node.spec.assignments or ()
        confirmed = item.paused and node.status.observed_generation >= node.metadata.generation
        drained = node.status.daemons[0].drained and not node.status.holders
        assert not gone.running or (confirmed and (drained or (max_wait == "1h" and item.terminate_clients)))
    for name, (item,) in decided.assignments.items():
        assert not item.terminate_clients or (max_wait == "1h" and item.paused), name
    before = {node.name: (node.gpu_node.spec.assignments or [])[0].paused for node, _ in fleet.parts if node.gpu_node}
    going = {pod.node for _, pod in fleet.parts if pod is not None and pod.deleting}
    begun = {name for name, (item,) in decided.assignments.items() if item.paused and not before[name]}
    assert len(begun - going) <= 1
    shuffled = replace(fleet.snapshot(**spec), nodes=tuple(reversed(list(nodes.values()))))
    assert plan(shuffled) == decided


def test_an_outdated_pod_of_a_silent_agent_stays(fleet: Fleet) -> None:
    fleet.node(pod=pod(), **WITHDRAWN)
    assert fleet.plan().replaced
    ((node, outdated),) = fleet.parts
    fleet.parts = [(fleet.make.without_heartbeat(node), outdated)]
    decided = fleet.plan()
    assert decided.replaced == ()
    assert decided.assignments["n1"] == (assigned(waiting_since=STAMP),), "nor is it paused"
    assert "its agent does not report" in fleet.condition()[2]
