"""Whole and shared GPUs on one node, and whose a resource name is there."""

from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.gpunode import Assignment, DaemonStatus
from gpushare.api.gpushare import GpuShare
from gpushare.api.names import FINALIZER
from gpushare.planner import FleetPlan
from tests.unit.planner.conftest import Make

NVIDIA = "nvidia.com/gpu"


def whole(name: str, resource: str | None = None, age: int = 0, **spec: Any) -> GpuShare:
    return GpuShare.model_validate(
        {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "creationTimestamp": f"2026-01-01T00:00:{59 - age:02}Z",
                "finalizers": [FINALIZER],
            },
            "spec": {"wholeGpus": {"resourceName": resource} if resource else {}, **spec},
        }
    )


def held_whole(share: str, index: int = 0, node: str = "n1", resource: str = NVIDIA, **fields: Any) -> DaemonStatus:
    values = {"uuid": f"GPU-{node}-{index}", "share": share, "ready": True, "reason": "Ready", "resource": resource}
    return DaemonStatus.model_validate(values | fields)


def owned(decided: FleetPlan, node: str = "n1") -> dict[str, int]:
    counted: dict[str, int] = defaultdict(int)
    for item in decided.assignments[node]:
        counted[item.share] += 1
    return counted


def unavailable(decided: FleetPlan, share: str) -> dict[str, str]:
    return {item.reason: item.message for item in decided.reports[share].counts.unavailable}


def test_a_node_of_eight_gpus_serves_three_shares(make: type[Make]) -> None:
    decided = make.plan(
        make.share("notebooks", age=3, gpus={"perNode": 2}),
        make.share("services", age=2, gpus={"perNode": 4}),
        whole("training", NVIDIA, age=1),
        make.node(gpus=8),
    )
    assert owned(decided) == {"notebooks": 2, "services": 4, "training": 2}
    assert decided.daemon_sets == {"notebooks", "services"}, "no MPS pod serves whole GPUs"
    assert decided.labels["n1"] == {"notebooks", "services", "training"}, "so that its finalizer waits for the node"


def test_whole_gpus_need_no_room_for_clients(make: type[Make]) -> None:
    small = [make.gpu(0, memory_mib=256)]
    assert owned(make.plan(whole("training"), make.node(gpus=small))) == {"training": 1}


def test_the_gpus_that_we_offer_as_nvidias_are_not_nvidias_plugins(make: type[Make]) -> None:
    mine = [make.assigned("training", 0)]
    node = make.node(assignments=mine, daemons=[held_whole("training")], allocatable=frozenset({NVIDIA}))
    assert owned(make.plan(whole("training", NVIDIA), node)) == {"training": 2}


def test_nvidias_own_plugin_keeps_its_name_and_its_node(make: type[Make]) -> None:
    decided = make.plan(whole("training", NVIDIA), make.node(allocatable=frozenset({NVIDIA})))
    assert decided.assignments["n1"] == ()
    assert "take it from NVIDIA's device plugin" in unavailable(decided, "training")["HeldByNvidiaPlugin"]


def test_a_name_that_another_plugin_offers_is_not_taken_over(make: type[Make]) -> None:
    taken = make.node("n1", allocatable=frozenset({"example.com/gpu"}))
    decided = make.plan(whole("training", "example.com/gpu"), taken, make.node("n2"))
    assert decided.assignments["n1"] == ()
    assert owned(decided, "n2") == {"training": 2}
    message = unavailable(decided, "training")["ResourceNameTaken"]
    assert "another device plugin offers example.com/gpu on node n1" in message


def test_a_node_whose_agent_found_the_name_taken_does_not_offer_it(make: type[Make]) -> None:
    taken = held_whole("training", ready=False, reason="ResourceNameTaken", message="another device plugin")
    node = make.node(
        assignments=[make.assigned("training", 0)], daemons=[taken], allocatable=frozenset({"example.com/gpu", NVIDIA})
    )
    decided = make.plan(whole("training", NVIDIA), node)
    assert owned(decided) == {"training": 1}, "it keeps what it has, and takes no more"
    ready = make.told(decided, "training")["Ready"]
    assert (ready.status, ready.reason) == ("False", "DaemonNotReady")
    assert "1 of 1 whole GPU not ready" in ready.message
    assert "ResourceNameTaken: another device plugin" in ready.message


def test_two_shares_do_not_offer_one_name_on_one_node(make: type[Make]) -> None:
    first, second = whole("first", NVIDIA, age=2, gpus={"perNode": 1}), whole("second", NVIDIA, age=1)
    decided = make.plan(first, second, make.node())
    assert owned(decided) == {"first": 1}
    message = unavailable(decided, "second")["ResourceNameTaken"]
    assert 'GpuShare "first" offers nvidia.com/gpu on node n1' in message
    assert make.told(decided, "second")["Ready"].status == "False"


def test_a_share_keeps_its_resource_name_against_an_older_share(make: type[Make]) -> None:
    older, younger = whole("older", NVIDIA, age=2), whole("younger", NVIDIA, age=1)
    node = make.node(assignments=[make.assigned("younger", 0)], daemons=[held_whole("younger")])
    assert owned(make.plan(older, younger, node)) == {"younger": 2}


def test_two_shares_have_one_name_on_nodes_of_their_own(make: type[Make]) -> None:
    here, there = ({"nodeSelector": {"matchLabels": {"pool": pool}}} for pool in ("x", "y"))
    decided = make.plan(
        whole("left", NVIDIA, **here),
        whole("right", NVIDIA, **there),
        make.node("n1", labels={"pool": "x"}),
        make.node("n2", labels={"pool": "y"}),
    )
    assert (owned(decided, "n1"), owned(decided, "n2")) == ({"left": 2}, {"right": 2})


def test_a_share_of_whole_gpus_says_so_and_that_it_has_no_limits(make: type[Make]) -> None:
    mine = [make.assigned("training", index) for index in (0, 1)]
    daemons = [held_whole("training", index) for index in (0, 1)]
    node = make.node(assignments=mine, daemons=daemons, held={(0, "training"): [0]}, allocatable=frozenset({NVIDIA}))
    decided = make.plan(whole("training", NVIDIA), node)
    told = make.told(decided, "training")
    assert {verdict.status for verdict in told.values()} == {"True"}
    assert told["DaemonsReady"].message == "2 GPUs are offered whole as nvidia.com/gpu, without MPS daemons"
    assert "no limit to enforce" in told["LimitsEnforced"].message
    counts = decided.reports["training"].counts
    assert (counts.slots.used, counts.slots.total, counts.threads, counts.memory) == (1, 2, "whole", "whole")


def test_a_gpu_becomes_whole_once_its_node_has_released_it(make: type[Make]) -> None:
    """A GPU passes the steps of every move: draining, drained, released, free."""
    shared, training = make.share("shared", age=2, gpus={"perNode": 1}), whole("training", NVIDIA, age=1)
    both = [make.assigned("shared", 0), make.assigned("shared", 1)]
    daemons = [make.daemon("shared", 0), make.daemon("shared", 1)]
    decided = make.plan(
        shared, training, make.node(assignments=both, daemons=daemons, held={(0, "shared"): [1], (1, "shared"): [3]})
    )
    assert [(assignment.share, assignment.draining) for assignment in decided.assignments["n1"]] == [
        ("shared", False),
        ("shared", True),
    ]
    drained = [make.daemon("shared", 0), make.daemon("shared", 1, drained=True)]
    leaving = [make.assigned("shared", 0), make.assigned("shared", 1, draining=True)]
    decided = make.plan(shared, training, make.node(assignments=leaving, daemons=drained))
    assert owned(decided) == {"shared": 1}, "its MPS daemon still runs"
    released = make.node(assignments=both[:1], daemons=drained[:1])
    assert owned(make.plan(shared, training, released)) == {"shared": 1, "training": 1}


def test_a_whole_gpu_that_a_container_has_drains_for_as_long_as_it_takes(make: type[Make]) -> None:
    training = whole("training", NVIDIA, gpus={"products": ["NVIDIA L4"]})
    node = make.node(
        assignments=[make.assigned("training", 0)], daemons=[held_whole("training")], held={(0, "training"): [0]}
    )
    (item,) = make.plan(training, node).assignments["n1"]
    assert (item.share, item.draining, item.terminate_clients) == ("training", True, False)


@given(data=st.data())
def test_no_node_gives_one_resource_name_to_two_shares(make: type[Make], data: st.DataObject) -> None:
    names = ("a", "b", "c")
    resources = ("nvidia.com/gpu", "example.com/gpu", None)
    shares = {
        name: whole(
            name,
            data.draw(st.sampled_from(resources)),
            age=data.draw(st.integers(0, 3)),
            gpus={"perNode": data.draw(st.integers(1, 3))} if data.draw(st.booleans()) else {},
        )
        for name in names
    }
    others = data.draw(st.sets(st.sampled_from(["nvidia.com/gpu", "example.com/gpu", "cpu"])))
    holder = data.draw(st.sampled_from([None, *names]))
    daemons, mine = list[DaemonStatus](), list[Assignment]()
    if holder is not None:
        daemons, mine = [held_whole(holder, resource=shares[holder].resource)], [make.assigned(holder)]
    node = make.node(gpus=4, assignments=mine, daemons=daemons, allocatable=frozenset(others))
    decided = make.plan(*shares.values(), node)
    given_to: dict[str, set[str]] = defaultdict(set)
    for item in decided.assignments["n1"]:
        given_to[shares[item.share].resource].add(item.share)
    assert all(len(users) == 1 for users in given_to.values())
    for resource in others & given_to.keys():
        assert holder is not None
        assert shares[holder].resource == resource, "what another plugin offers is nobody's"
    for name, share in shares.items():
        has = name in {item.share for item in decided.assignments["n1"]}
        assert has or unavailable(decided, name), f"{name} ({share.resource}) is told why it has nothing"
