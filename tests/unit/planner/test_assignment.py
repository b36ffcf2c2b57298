"""Who gets which GPU, who keeps it, and how one leaves."""

from typing import Any

import pytest

from gpushare.planner import Snapshot, plan


def test_a_share_takes_every_gpu_of_the_nodes_it_selects(make: Any) -> None:
    share = make.share(nodeSelector={"matchLabels": {"pool": "gpu"}})
    decided = make.plan(share, make.node("n1", labels={"pool": "gpu"}), make.node("n2"))
    assert decided.assignments == {
        "n1": (make.assigned("a", 0), make.assigned("a", 1)),
        "n2": (),
    }
    assert decided.labels == {"n1": frozenset({"a"}), "n2": frozenset()}
    assert decided.daemon_sets == {"a"}


def test_the_oldest_share_wins_and_the_loser_names_it(make: Any) -> None:
    decided = make.plan(make.share("young", age=1), make.share("old", age=9), make.node(gpus=1))
    assert decided.assignments["n1"] == (make.assigned("old"),)
    (group,) = decided.reports["young"].counts.unavailable
    assert group.reason == "HeldByShare"
    assert group.message == 'GPU GPU-n1-0 of node n1 belongs to GpuShare "old"'
    assert make.told(decided, "young")["Ready"].reason == "GpusUnavailable"
    assert group.message in make.told(decided, "young")["Ready"].message


def test_of_a_share_that_gives_one_gpu_back_the_next_share_names_that_one(make: Any) -> None:
    old = make.share("old", age=9, gpus={"perNode": 1})
    node = make.node(
        assignments=[make.assigned("old", 0), make.assigned("old", 1)],
        daemons=[make.daemon("old", 0), make.daemon("old", 1)],
        held={(0, "old"): [0, 3], (1, "old"): [1]},
    )
    decided = make.plan(old, make.share("young", age=1), node)
    assert decided.assignments["n1"] == (make.assigned("old", 0), make.assigned("old", 1, draining=True))
    (group,) = decided.reports["young"].counts.unavailable
    assert (group.reason, group.count) == ("HeldByShare", 2)
    assert group.message == 'GPU GPU-n1-1 of node n1 is free once GpuShare "old" has given it back'


def test_of_equal_age_the_first_by_name_wins(make: Any) -> None:
    assert make.plan(make.share("b"), make.share("a"), make.node(gpus=1)).assignments["n1"] == (make.assigned("a"),)


def test_what_a_share_holds_it_keeps_from_an_older_one(make: Any) -> None:
    node = make.node(gpus=1, assignments=[make.assigned("young")], daemons=[make.daemon("young")])
    decided = make.plan(make.share("young", age=1), make.share("old", age=9), node)
    assert decided.assignments["n1"] == (make.assigned("young"),)


@pytest.mark.parametrize(
    "trouble",
    [
        {"ready": False},
        {"allocatable": frozenset({"nvidia.com/gpu"})},
        {"status": {"foreignHolders": [{"namespace": "ml", "pod": "p", "resource": "nvidia.com/gpu"}]}},
    ],
    ids=["its node is not Ready", "NVIDIA's plugin came back", "a pod got the whole GPU"],
)
def test_a_held_gpu_stays_though(make: Any, trouble: dict[str, Any]) -> None:
    node = make.node(gpus=1, assignments=[make.assigned("a")], daemons=[make.daemon("a")], **trouble)
    assert make.plan(make.share(), node).assignments["n1"] == (make.assigned("a"),)


def test_two_shares_split_a_node_by_per_node(make: Any) -> None:
    shares = make.share("old", age=9, gpus={"perNode": 1}), make.share("young", gpus={"perNode": 1})
    decided = make.plan(*shares, make.node(gpus=2))
    assert decided.assignments["n1"] == (make.assigned("old", 0), make.assigned("young", 1))
    assert all(make.told(decided, name)["GpusAssigned"].reason != "GpusUnavailable" for name in ("old", "young"))


def test_per_node_prefers_what_is_ours_already_to_a_lower_index(make: Any) -> None:
    node = make.node(gpus=3, assignments=[make.assigned("a", 2)], daemons=[make.daemon("a", 2)])
    assert make.plan(make.share(gpus={"perNode": 1}), node).assignments["n1"] == (make.assigned("a", 2),)


def test_what_per_node_leaves_out_is_listed_but_no_trouble(make: Any) -> None:
    decided = make.plan(make.share(gpus={"perNode": 1}), make.node(gpus=2))
    assert decided.reports["a"].counts.unavailable[0].reason == "PerNodeReached"
    assert make.told(decided)["GpusAssigned"].reason == "Assigned"


def test_shrinking_gives_up_the_gpu_that_nobody_holds(make: Any) -> None:
    node = make.node(
        assignments=[make.assigned("a", 0), make.assigned("a", 1)],
        daemons=[make.daemon("a", 0), make.daemon("a", 1)],
        held={(1, "a"): [0, 3]},
    )
    decided = make.plan(make.share(gpus={"perNode": 1}), node)
    assert decided.assignments["n1"] == (make.assigned("a", 0, draining=True), make.assigned("a", 1))


def test_a_leaving_gpu_goes_on_leaving_with_a_late_holder(make: Any) -> None:
    node = make.node(
        assignments=[make.assigned("a", 0, draining=True), make.assigned("a", 1)],
        daemons=[make.daemon("a", 0), make.daemon("a", 1)],
        held={(0, "a"): [0]},
    )
    decided = make.plan(make.share(gpus={"perNode": 1}), node)
    assert decided.assignments["n1"] == (make.assigned("a", 0, draining=True), make.assigned("a", 1))


def test_an_edit_that_excludes_a_gpu_drains_it_until_it_is_undone(make: Any) -> None:
    node = make.node(gpus=1, assignments=[make.assigned("a")], daemons=[make.daemon("a")])
    greedy = make.plan(make.share(clients={"memory": {"default": "100Gi"}}), node)
    assert greedy.assignments["n1"] == (make.assigned("a", draining=True),)
    assert make.told(greedy)["Ready"].reason == "GpusUnavailable"
    draining = make.node(gpus=1, assignments=[make.assigned("a", draining=True)], daemons=[make.daemon("a")])
    assert make.plan(make.share(), draining).assignments["n1"] == (make.assigned("a"),)


LEAVING: dict[str, tuple[dict[str, Any], tuple[bool, ...]]] = {
    "first it drains": ({"assignments": "kept", "daemon": {}}, (True,)),
    "it stays while a container holds a slot": (
        {"assignments": "draining", "daemon": {"drained": True}, "held": {(0, "a"): [7]}},
        (True,),
    ),
    "it stays while its node does not tell that it is idle": ({"assignments": "draining", "daemon": {}}, (True,)),
    "it goes once its node tells": ({"assignments": "draining", "daemon": {"drained": True}}, ()),
    "it does not come back while its node lets go": ({"assignments": "gone", "daemon": {"drained": True}}, ()),
    "nor once its node stops its daemon, of which it does not say drained": (
        {"assignments": "gone", "daemon": {"ready": False, "reason": "Stopping"}},
        (),
    ),
    "it drains again where a container got a slot all the same": (
        {"assignments": "gone", "daemon": {}, "held": {(0, "a"): [7]}},
        (True,),
    ),
    "one that no daemon ever took goes when its node has seen that": ({"assignments": "draining"}, ()),
    "one that no daemon ever took stays until its node has seen that": (
        {"assignments": "draining", "observed": 1},
        (True,),
    ),
    "one whose node forgot the wish drains again": ({"assignments": None, "daemon": {}}, (True,)),
}


@pytest.mark.parametrize(("state", "left"), LEAVING.values(), ids=LEAVING)
def test_a_gpu_of_a_deleted_share_leaves(make: Any, state: dict[str, Any], left: tuple[bool, ...]) -> None:
    wanted = {
        "kept": [make.assigned("a")],
        "draining": [make.assigned("a", draining=True)],
        "gone": [],
        None: None,
    }[state["assignments"]]
    node = make.node(
        gpus=1,
        assignments=wanted,
        daemons=[make.daemon("a", **state["daemon"])] if "daemon" in state else [],
        held=state.get("held"),
        observed=state.get("observed", 2),
    )
    decided = make.plan(make.share(deleting=True), make.share("b"), node)
    assert [item.draining for item in decided.assignments["n1"] if item.share == "a"] == list(left)
    if left or "daemon" in state:
        assert decided.released == frozenset()
        assert "a" in decided.labels["n1"]
        assert "a" in decided.daemon_sets
        assert not any(item.share == "b" for item in decided.assignments["n1"])
    else:
        assert decided.released == {"a"}


def test_a_deleted_share_that_never_took_a_gpu_goes_at_once(make: Any) -> None:
    assert make.plan(make.share(deleting=True), make.node()).released == {"a"}


def test_a_share_that_is_gone_without_our_leave_is_drained_all_the_same(make: Any) -> None:
    node = make.node(gpus=1, assignments=[make.assigned("ghost")], daemons=[make.daemon("ghost")])
    decided = make.plan(make.share(), node)
    assert decided.assignments["n1"] == (make.assigned("ghost", draining=True),)
    assert decided.daemon_sets == {"ghost"}


def test_a_running_daemon_counts_more_than_a_lost_assignment(make: Any) -> None:
    node = make.node(gpus=1, assignments=None, daemons=[make.daemon("young")])
    decided = make.plan(make.share("old", age=9), make.share("young"), node)
    assert decided.assignments["n1"] == (make.assigned("young"),)


def test_no_news_changes_nothing(make: Any) -> None:
    share, labels = make.share(), {"share.gpushare.dev/a": "true"}
    fresh = make.node(gpus=[], assignments=None, observed=0, generation=1, labels=labels)
    for node in (fresh, make.silent(fresh)):
        decided = make.plan(share, node)
        assert "n1" not in decided.assignments
        assert decided.labels["n1"] == {"a"}
        assert decided.daemon_sets == {"a"}


def test_an_agent_that_has_not_spoken_yet_keeps_its_assignments(make: Any) -> None:
    node = make.node(gpus=[], assignments=[make.assigned("a")], observed=0)
    assert make.plan(make.share(), node).assignments["n1"] == (make.assigned("a"),)


def test_a_gpu_that_vanished_without_a_trace_is_let_go(make: Any) -> None:
    node = make.node(gpus=1, assignments=[make.assigned("a", 0), make.assigned("a", 5, draining=True)])
    assert make.plan(make.share(), node).assignments["n1"] == (make.assigned("a", 0),)


NVML_ANSWERS = [
    {
        "type": "NvmlReachable",
        "status": "True",
        "reason": "Reachable",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
]


@pytest.mark.parametrize(
    ("nvml", "ready", "held", "stays"),
    [
        ("True", False, {}, False),
        ("True", True, {}, True),
        ("True", False, {(7, "a"): [0]}, True),
        ("False", False, {}, True),
        ("Unknown", False, {}, True),
        (None, False, {}, True),
    ],
    ids=["gone", "a daemon serves it", "a container holds it", "NVML left it out", "the agent is silent", "no word"],
)
def test_a_replaced_gpu_leaves_its_share_and_the_new_one_takes_its_place(
    make: Any, nvml: str | None, ready: bool, held: dict[tuple[int, str], list[int]], stays: bool
) -> None:
    """An agent reports a daemon of each GPU that is assigned to it, also of one that NVML does not list."""
    node = make.node(
        gpus=1,
        assignments=[make.assigned("a", 7)],
        daemons=[make.daemon("a", 7, ready=ready, reason="GpuLost")],
        held=held,
        status={"conditions": [NVML_ANSWERS[0] | {"status": nvml}] if nvml else []},
    )
    decided = make.plan(make.share(gpus={"perNode": 1}), node).assignments["n1"]
    assert decided == (
        (make.assigned("a", 7),) if stays else (make.assigned("a", 0), make.assigned("a", 7, draining=True))
    )


def test_a_replaced_gpu_that_is_drained_is_assigned_no_more(make: Any) -> None:
    node = make.node(
        gpus=1,
        assignments=[make.assigned("a", 0), make.assigned("a", 7, draining=True)],
        daemons=[make.daemon("a", 0), make.daemon("a", 7, ready=False, drained=True)],
        status={"conditions": NVML_ANSWERS},
    )
    assert make.plan(make.share(), node).assignments["n1"] == (make.assigned("a", 0),)


def test_a_live_share_gets_our_finalizer_once(make: Any) -> None:
    assert make.plan(make.share(finalizer=False)).finalizers == {"a"}
    assert make.plan(make.share()).finalizers == frozenset()
    assert make.plan(make.share(finalizer=False, deleting=True)).finalizers == frozenset()


def test_a_share_of_unsupported_claims_takes_no_gpu(make: Any) -> None:
    share = make.share(delivery="ResourceClaim", finalizer=False)
    decided = plan(Snapshot((share,), (make.node(),), no_claims="needs Kubernetes 1.36 or newer"))
    assert decided.assignments["n1"] == ()
    assert decided.finalizers == frozenset()
    ready = make.told(decided)["Ready"]
    assert (ready.reason, "Kubernetes 1.36" in ready.message) == ("DeliveryUnsupported", True)


def test_a_share_delivered_by_claims_takes_gpus_as_any_other(make: Any) -> None:
    by_slots = make.plan(make.share(finalizer=False), make.node())
    by_claims = make.plan(make.share(finalizer=False, delivery="ResourceClaim"), make.node())
    for field in ("assignments", "labels", "daemon_sets", "finalizers"):
        assert getattr(by_claims, field) == getattr(by_slots, field) != frozenset()


@pytest.mark.parametrize(
    ("allocated", "stays"),
    [({"n1": frozenset({"gpu-n1-0"})}, True), (None, True), ({"n2": frozenset({"gpu-n1-0"})}, False)],
    ids=["a claim has it", "not known yet", "a claim of another node"],
)
def test_a_gpu_stays_with_its_share_while_a_claim_has_it(
    make: Any, allocated: dict[str, frozenset[str]] | None, stays: bool
) -> None:
    node = make.node(gpus=1, assignments=[make.assigned("a", draining=True)], daemons=[make.daemon("a", drained=True)])
    going = make.share(delivery="ResourceClaim", deleting=True)
    decided = plan(Snapshot((going,), (node,), allocated=allocated))
    assert bool(decided.assignments["n1"]) is stays


@pytest.mark.parametrize(
    ("per_gpu", "default", "overcommit", "taken"),
    [(60, "16Gi", False, 2), (1, "139Gi", False, 2), (1, "140Gi", False, 0), (1, "140Gi", True, 2)],
    ids=[
        "the scheduler adds claims up, so all together may be more",
        "the default claim fits beside what the server needs",
        "not even one default claim fits",
        "over-commit was asked for",
    ],
)
def test_a_gpu_needs_room_for_one_default_claim(
    make: Any, per_gpu: int, default: str, overcommit: bool, taken: int
) -> None:
    clients = {"perGpu": per_gpu, "memory": {"default": default, "overcommit": overcommit}}
    decided = make.plan(make.share(delivery="ResourceClaim", clients=clients), make.node(status={"clientCeiling": 60}))
    assert len(decided.assignments["n1"]) == taken
