"""What a share tells of itself: counts, conditions, and what to do."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare, GpuShareStatus
from gpushare.api.names import FINALIZER
from gpushare.api.timestamps import parse_timestamp
from gpushare.planner import FleetPlan, Snapshot, plan
from gpushare.planner.status.share_summary import START_SECONDS


def _running(make: Any, **daemon: Any) -> Any:
    return make.node(
        assignments=[make.assigned("a", 0), make.assigned("a", 1)],
        daemons=[make.daemon("a", 0), make.daemon("a", 1, **daemon)],
        held={(0, "a"): [0, 1, 2]},
    )


def test_a_share_whose_daemons_are_verified_is_ready(make: Any) -> None:
    decided = make.plan(make.share(), _running(make))
    counts, told = decided.reports["a"].counts, make.told(decided)
    assert all(verdict.status == "True" for verdict in told.values())
    assert list(told) == [
        "Ready",
        "GpusAssigned",
        "DaemonsReady",
        "LimitsEnforced",
        "DaemonsCurrent",
        "DeparturesGuarded",
    ]
    assert (counts.summary, counts.threads, counts.memory) == ("2/2", "25/50%", "16Gi/16Gi")
    assert (counts.slots.total, counts.slots.used, counts.nodes) == (16, 3, 1)
    assert (counts.gpus.matching, counts.gpus.assigned, counts.gpus.ready, counts.gpus.draining) == (2, 2, 2, 0)
    assert (counts.gpu_memory_mib, counts.observed_generation) == (143155, 3)
    assert told["LimitsEnforced"].message == (
        "50% of the SMs and 16384Mi per process for new clients on 2 GPUs of node n1; those that run keep what they "
        "started with"
    )


def _sized(make: Any, memory_mib: int) -> GpuShare:
    """The share as the API has it, with the size that it was told before."""
    share: GpuShare = make.share()
    return share.model_copy(update={"status": GpuShareStatus(gpu_memory_mib=memory_mib)})


@pytest.mark.parametrize(
    ("reported", "known", "memory"),
    [([], 143155, 143155), ([], 0, 0), ([0], 143155, 143155), ([0, 1], 143155, 81559), ([0], 0, 81559)],
)
def test_a_share_keeps_its_largest_size_while_no_agent_reports(
    make: Any, reported: list[int], known: int, memory: int
) -> None:
    node = make.node(
        gpus=[make.gpu(index, memory_mib=81559) for index in reported],
        assignments=[make.assigned("a", 0), make.assigned("a", 1)],
    )
    assert make.plan(_sized(make, known), node).reports["a"].counts.gpu_memory_mib == memory


def test_a_share_without_gpus_has_no_size(make: Any) -> None:
    assert make.plan(_sized(make, 143155), make.node(gpus=0)).reports["a"].counts.gpu_memory_mib == 0


def test_the_message_of_the_worst_daemon_is_carried(make: Any) -> None:
    line = "Failed to start: Permission denied"
    node = make.node(
        gpus=3,
        assignments=[make.assigned("a", index) for index in range(3)],
        daemons=[
            make.daemon("a", 0, ready=False, reason="Starting", message="starting"),
            make.daemon("a", 1, ready=False, reason="DaemonFailed", message=line),
            make.daemon("a", 2),
        ],
    )
    decided = make.plan(make.share(), node)
    ready = make.told(decided)["Ready"]
    assert (ready.status, ready.reason) == ("False", "DaemonNotReady")
    assert ready.message == f"2 of 3 MPS daemons not ready; GPU GPU-n1-1 of node n1: DaemonFailed: {line}"
    assert decided.reports["a"].counts.slots.total == 8


def test_a_gpu_that_no_agent_took_up_names_the_node_to_look_at(make: Any) -> None:
    ready = make.told(make.plan(make.share(), make.node(gpus=1)))["Ready"]
    assert ready.reason == "DaemonsStarting"
    assert "the agent of node n1 has not taken it up yet" in ready.message


ASSIGNED_AT, UNREADY_AT = "2026-03-01T00:00:00Z", "2026-03-01T00:10:00Z"


def _started(make: Any, seconds: float, conditions: list[dict[str, str]], **daemon: Any) -> FleetPlan:
    """The plan `seconds` after UNREADY_AT for a share with one GPU, whose daemon is not ready."""
    share = make.share()
    share = share.model_validate(share.model_dump() | {"status": {"conditions": conditions}})
    fields = {"ready": False, "reason": "Starting"} | daemon
    node = make.node(gpus=1, assignments=[make.assigned("a")], daemons=[make.daemon("a", **fields)])
    now = parse_timestamp(UNREADY_AT) + timedelta(seconds=seconds)
    return plan(Snapshot((share,), (node,), now=now))


def _condition(kind: str, status: str, since: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "X", "message": "", "lastTransitionTime": since}


ASSIGNED = _condition("GpusAssigned", "True", ASSIGNED_AT)
UNREADY = _condition("DaemonsReady", "False", UNREADY_AT)
STARTS: dict[str, tuple[float, list[dict[str, str]], dict[str, str], str]] = {
    "no condition is written yet": (0, [], {}, "DaemonsStarting"),
    "not ready for less than that": (START_SECONDS - 1, [ASSIGNED, UNREADY], {}, "DaemonsStarting"),
    "not ready for so long": (START_SECONDS, [ASSIGNED, UNREADY], {}, "DaemonNotReady"),
    "it waited for a GPU before": (
        START_SECONDS,
        [_condition("GpusAssigned", "False", ASSIGNED_AT), UNREADY],
        {},
        "DaemonsStarting",
    ),
    "it was ready until now": (
        9 * START_SECONDS,
        [ASSIGNED, _condition("DaemonsReady", "True", UNREADY_AT)],
        {},
        "DaemonsStarting",
    ),
    "it fails": (0, [], {"reason": "DaemonFailed"}, "DaemonNotReady"),
    "a newer agent's reason": (0, [], {"reason": "Melting"}, "DaemonNotReady"),
    "times that cannot be read": (0, [ASSIGNED, _condition("DaemonsReady", "False", "?")], {}, "DaemonsStarting"),
}


@pytest.mark.parametrize(("seconds", "conditions", "daemon", "reason"), STARTS.values(), ids=STARTS)
def test_a_start_is_a_problem_once_it_lasts(
    make: Any, seconds: float, conditions: list[dict[str, str]], daemon: dict[str, str], reason: str
) -> None:
    decided = _started(make, seconds, conditions, **daemon)
    assert [make.told(decided)[kind].reason for kind in ("Ready", "DaemonsReady")] == [reason, reason]


def test_a_plan_says_when_a_start_will_have_lasted_too_long(make: Any) -> None:
    end: datetime = parse_timestamp(UNREADY_AT) + timedelta(seconds=START_SECONDS)
    assert _started(make, 1, [ASSIGNED, UNREADY]).again_at == end
    assert _started(make, START_SECONDS, [ASSIGNED, UNREADY]).again_at is None
    assert _started(make, 1, [ASSIGNED, UNREADY], reason="DaemonFailed").again_at is None


def test_limits_that_are_not_in_force_yet_are_told_with_both_values(make: Any) -> None:
    decided = make.plan(make.share(clients={"threads": {"default": 25, "max": 60}}), _running(make))
    verdict = make.told(decided)["LimitsEnforced"]
    assert (verdict.status, verdict.reason) == ("False", "LimitsPending")
    assert "wanted are 60% of the SMs" in verdict.message
    assert "has 50% of the SMs" in verdict.message
    assert make.told(decided)["Ready"].reason == "LimitsPending"


def _found(index: int = 0, **fields: Any) -> dict[str, Any]:
    message = "container app of pod team/x uses too much"
    values = {
        "uuid": f"GPU-n1-{index}",
        "share": "a",
        "reason": "MemoryAboveGrant",
        "granted": 16384,
        "observed": 20000,
        "message": message,
        "since": "2026-01-01T00:00:00Z",
    }
    return values | fields


def _running_with(make: Any, *findings: dict[str, Any]) -> Any:
    return make.node(
        gpus=1, assignments=[make.assigned("a", 0)], daemons=[make.daemon("a", 0)], status={"findings": list(findings)}
    )


def test_a_client_above_its_grant_leaves_the_share_ready(make: Any) -> None:
    told = make.told(make.plan(make.share(), _running_with(make, _found())))
    verdict = told["LimitsEnforced"]
    assert (verdict.status, verdict.reason) == ("False", "GrantsExceeded")
    assert verdict.message == (
        "node n1: MemoryAboveGrant on GPU GPU-n1-0: 20000 MiB used, 16384 MiB granted "
        "(GpuNode.status.findings names who)"
    )
    assert told["Ready"].status == "True"


def test_of_many_findings_the_oldest_are_told_and_the_others_counted(make: Any) -> None:
    many = [_found(observed=20000 + age, since=f"2026-01-01T00:00:{age:02}Z") for age in (4, 0, 3, 1, 2)]
    many[1] |= {"reason": "TooManyProcesses", "observed": 2, "granted": 1}
    verdict = make.told(make.plan(make.share(), _running_with(make, *many)))["LimitsEnforced"]
    first, second, third, more = verdict.message.split("; ")
    assert first == "node n1: TooManyProcesses on GPU GPU-n1-0: 2 processes used, 1 processes granted"
    assert ["20001 MiB" in second, "20002 MiB" in third] == [True, True]
    assert more == "2 more (GpuNode.status.findings names who)"


def test_findings_on_another_shares_gpu_are_not_told(make: Any) -> None:
    other = _found(share="b", message="other")
    foreign = _found(index=1, message="not ours")
    assert make.told(make.plan(make.share(), _running_with(make, other, foreign)))["LimitsEnforced"].status == "True"


def test_limits_that_are_not_in_force_are_told_before_what_exceeds_them(make: Any) -> None:
    share = make.share(clients={"threads": {"default": 25, "max": 60}})
    assert make.told(make.plan(share, _running_with(make, _found())))["LimitsEnforced"].reason == "LimitsPending"


def _other_nodes(make: Any) -> list[Any]:
    labelled = [("n1", {"pool": "inference"}), ("n2", {"pool": "training"}), ("n3", {"zone": "a"})]
    return [make.node(name, labels=labels) for name, labels in labelled] + [make.silent(make.node("n4"))]


WHOLE = "spec.nodeSelector matches none of 3 nodes with GPUs: "
NODE_SELECTORS: dict[str, tuple[dict[str, Any], str]] = {
    "a value that no node has": (
        {"matchLabels": {"pool": "inferense"}},
        "it wants the label pool In inferense, and there it is inference (1), training (1)",
    ),
    "a label that no node has": (
        {"matchLabels": {"pool": "training", "pol": "x"}},
        "it wants the label pol In x, and there no node has it",
    ),
    "an expression": (
        {"matchExpressions": [{"key": "rack", "operator": "Exists"}]},
        "it wants the label rack Exists, and there no node has it",
    ),
    "each of them matches some node": (
        {"matchLabels": {"pool": "training", "zone": "a"}},
        "some meet one of its requirements, none meets all of them",
    ),
}


@pytest.mark.parametrize(("selector", "words"), NODE_SELECTORS.values(), ids=NODE_SELECTORS)
def test_a_share_that_selects_no_node_names_the_requirement(make: Any, selector: dict[str, Any], words: str) -> None:
    ready = make.told(make.plan(make.share(nodeSelector=selector), *_other_nodes(make)))["Ready"]
    assert (ready.reason, ready.message) == ("NoMatchingNodes", WHOLE + words)


def test_a_share_of_a_cluster_without_agents_is_sent_to_their_daemon_set(make: Any) -> None:
    ready = make.told(make.plan(make.share()))["Ready"]
    assert (ready.reason, "DaemonSet gpushare-agent" in ready.message) == ("NoMatchingNodes", True)


def test_a_selected_node_without_an_agent_is_named(make: Any) -> None:
    ready = make.told(make.plan(make.share(), make.silent(make.node())))["Ready"]
    assert ready.reason == "NoMatchingNodes"
    assert "node n1 selected, but no agent reports a GPU there" in ready.message


def test_a_product_that_no_gpu_is_is_told_with_the_nearest_that_there_are(make: Any) -> None:
    share = make.share(gpus={"products": ["NVIDIA H20O"]})
    decided = make.plan(share, make.node(gpus=[make.gpu(0, product="NVIDIA L4"), make.gpu(1), make.gpu(2)]))
    words = 'names "NVIDIA H20O", but the GPUs of the selected nodes are 2 "NVIDIA H200", 1 "NVIDIA L4"'
    ready, counts = make.told(decided)["Ready"], decided.reports["a"].counts
    assert (ready.reason, ready.message) == ("ProductMismatch", f"spec.gpus.products {words}")
    (group,) = counts.unavailable
    assert (group.reason, group.count, group.message) == ("ProductMismatch", 3, ready.message)


def test_a_refusal_names_the_three_nearest_products(make: Any) -> None:
    gpus = [make.gpu(index, product=f"NVIDIA {chr(65 + index) * 60}"[:64]) for index in range(16)]
    products = [f"NVIDIA H200 of kind {number}" for number in range(15)] + ["NVIDIA PPPPPP"]
    message = make.told(make.plan(make.share(gpus={"products": products}), make.node(gpus=gpus)))["Ready"].message
    assert ' and 13 more, but the GPUs of the selected nodes are 1 "NVIDIA PPPP' in message
    assert message.endswith(" and 13 others")
    assert len(message) < 1024


def test_some_gpus_out_of_reach_are_told_but_the_share_is_ready(make: Any) -> None:
    gpus = [make.gpu(0), make.gpu(1, mig_enabled=True)]
    node = make.node(gpus=gpus, assignments=[make.assigned("a")], daemons=[make.daemon("a")])
    told = make.told(make.plan(make.share(), node))
    assert (told["GpusAssigned"].status, told["GpusAssigned"].reason) == ("True", "SomeGpusUnavailable")
    assert told["Ready"].status == "True"
    assert "1 MigEnabled" in told["Ready"].message


def test_a_deleted_share_tells_what_it_waits_for(make: Any) -> None:
    ready = make.told(make.plan(make.share(deleting=True), _running(make)))["Ready"]
    assert ready.reason == "Draining"
    assert ready.message == "3 slots on 1 GPU of node n1 are held; waiting for their containers to end"


def test_a_deleted_share_without_clients_waits_for_the_agent(make: Any) -> None:
    node = make.node(gpus=1, assignments=[], daemons=[make.daemon("a", drained=True)], ready=False)
    ready = make.told(make.plan(make.share(deleting=True), node))["Ready"]
    assert ready.reason == "Releasing"
    assert ready.message.startswith(
        "no container holds a slot; waiting for the agent to release 1 GPU of node n1; node n1 not Ready"
    )


@pytest.mark.parametrize(
    ("finalizers", "text"),
    [
        ([FINALIZER], "the share goes"),
        ([], "the share goes"),
        (["foregroundDeletion"], "Kubernetes waits for objects that name it as their owner with blockOwnerDeletion"),
        ([FINALIZER, "foregroundDeletion", "a.b/c"], "deleted in the foreground"),
        (["a.b/c", "a.b/d"], "its finalizers a.b/c, a.b/d are not gpushare's"),
    ],
)
def test_a_deleted_share_that_has_nothing_tells_who_keeps_its_object(
    make: Any, finalizers: list[str], text: str
) -> None:
    share = make.share(deleting=True)
    share.metadata.finalizers[:] = finalizers
    ready = make.told(make.plan(share, make.node()))["Ready"]
    assert ready.reason == "Releasing"
    assert ready.message.startswith("no GPU is held any more; ")
    assert text in ready.message


def test_a_deleted_share_is_enforced_as_long_as_it_has_clients(make: Any) -> None:
    node = make.node(
        gpus=1, assignments=[make.assigned("a", draining=True)], daemons=[make.daemon("a")], held={(0, "a"): [3]}
    )
    told = make.told(make.plan(make.share(deleting=True), node))
    assert (told["LimitsEnforced"].status, told["DaemonsReady"].status) == ("True", "False")
    assert "no daemon runs" not in told["DaemonsReady"].message
    assert "given back once no container holds a slot" in told["DaemonsReady"].message


LEAVING: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "a deleted share": ({"deleting": True}, {"Ready": "Draining", "GpusAssigned": "Releasing"}),
    "memory that no GPU has": (
        {"clients": {"memory": {"default": "64Gi"}}},
        {"Ready": "GpusUnavailable", "GpusAssigned": "GpusUnavailable"},
    ),
}


@pytest.mark.parametrize(("share", "reasons"), LEAVING.values(), ids=LEAVING)
@pytest.mark.parametrize("clients", [True, False])
def test_a_share_that_leaves_its_gpus_says_what_serves_still(
    make: Any, share: dict[str, Any], reasons: dict[str, str], clients: bool
) -> None:
    node = make.node(
        gpus=1,
        assignments=[make.assigned("a", draining=True)],
        daemons=[make.daemon("a")],
        held={(0, "a"): [3, 4]} if clients else {},
    )
    told = make.told(make.plan(make.share(**share), node))
    assert told["GpusAssigned"].reason == reasons["GpusAssigned"]
    daemons, limits = told["DaemonsReady"], told["LimitsEnforced"]
    if clients:
        assert told["Ready"].reason == reasons["Ready"]
        assert (daemons.reason, limits.status) == ("Draining", "True")
        assert daemons.message.startswith(
            "1 MPS daemon is kept for the clients that run, and for no others; 1 GPU of node"
        )
        assert limits.message == (
            "for the clients that run on 1 GPU of node n1: those that run keep what they started with, until they end"
        )
    else:
        assert "1 GPU of node n1 is given back: no container holds a slot there" in daemons.message
        assert limits.message == "no container holds a slot on 1 GPU of node n1, so nothing is enforced"


CHANGE = {"threads": {"default": 25, "max": 60}}
READY, ENFORCED = _condition("Ready", "True", ASSIGNED_AT), _condition("LimitsEnforced", "True", ASSIGNED_AT)
PENDING = _condition("LimitsEnforced", "False", UNREADY_AT)
CHANGES: dict[str, tuple[float, list[dict[str, str]], dict[str, Any], str]] = {
    "just changed": (0, [READY, ENFORCED], {}, "True"),
    "the daemon takes them over": (1, [READY, PENDING], {"ready": False, "reason": "LimitsNotInForce"}, "True"),
    "it lasts": (START_SECONDS, [READY, PENDING], {"ready": False, "reason": "LimitsNotInForce"}, "False"),
    "no agent takes them up": (START_SECONDS, [READY, PENDING], {}, "False"),
    "the daemon fails meanwhile": (1, [READY, PENDING], {"ready": False, "reason": "DaemonFailed"}, "False"),
    "it was not ready before": (1, [PENDING], {"ready": False, "reason": "LimitsNotInForce"}, "False"),
}


@pytest.mark.parametrize(("seconds", "conditions", "daemon", "status"), CHANGES.values(), ids=CHANGES)
def test_a_change_of_limits_leaves_a_share_ready_unless_it_lasts(
    make: Any, seconds: float, conditions: list[dict[str, str]], daemon: dict[str, Any], status: str
) -> None:
    share = make.share(clients=CHANGE)
    share = share.model_validate(share.model_dump() | {"status": {"conditions": conditions}})
    node = make.node(
        gpus=1, assignments=[make.assigned("a")], daemons=[make.daemon("a", **daemon)], held={(0, "a"): [1]}
    )
    now = parse_timestamp(UNREADY_AT) + timedelta(seconds=seconds)
    decided = plan(Snapshot((share,), (node,), now=now))
    told = make.told(decided)
    assert told["Ready"].status == status
    assert told["LimitsEnforced"].status == "False"
    assert told["LimitsEnforced"].message.endswith("those that run keep what they started with")
    if status == "True":
        assert decided.again_at == now + timedelta(seconds=START_SECONDS - seconds), "it is looked at again"


def test_more_slots_held_than_offered_are_explained(make: Any) -> None:
    ready = make.told(make.plan(make.share(clients={"perGpu": 1}), _running(make)))["Ready"]
    assert ready.message.endswith("3 slots are held, and 2 offered: those who have one keep it")


@pytest.mark.parametrize(
    ("lost", "status", "words"),
    [
        ([0], "True", "on 1 GPU of node n1; NVML does not reach 1 GPU of node n1"),
        ([0, 1], "False", "NVML reaches none of its GPUs: 2 GPUs of node n1"),
    ],
)
def test_limits_are_in_force_on_no_gpu_that_is_lost(make: Any, lost: list[int], status: str, words: str) -> None:
    daemons = [
        make.daemon("a", index, **({"ready": False, "reason": "GpuLost"} if index in lost else {})) for index in (0, 1)
    ]
    node = make.node(assignments=[make.assigned("a", 0), make.assigned("a", 1)], daemons=daemons)
    verdict = make.told(make.plan(make.share(), node))["LimitsEnforced"]
    assert verdict.status == status
    assert words in verdict.message


def test_messages_stay_within_the_bounds_of_the_api(make: Any) -> None:
    node = make.node(gpus=1, daemons=[make.daemon("a", ready=False, reason="DaemonFailed", message="x" * 1024)])
    many = [make.node(f"n{number}", gpus=1, ready=False) for number in range(2, 100)]
    decided = make.plan(make.share(), node, *many)
    assert all(len(verdict.message) <= 2048 for verdict in decided.reports["a"].verdicts)


def _statuses(make: Any, *parts: Any) -> dict[str, tuple[str, str]]:
    return {kind: (condition.status, condition.reason) for kind, condition in make.told(make.plan(*parts)).items()}


def test_conditions_of_a_silent_agents_gpus_are_not_true(make: Any) -> None:
    node = make.without_heartbeat(_running(make))
    decided = make.plan(make.share(), node)
    assert _statuses(make, make.share(), node) == {
        "Ready": ("Unknown", "AgentSilent"),
        "GpusAssigned": ("True", "Assigned"),
        "DaemonsReady": ("Unknown", "AgentSilent"),
        "LimitsEnforced": ("Unknown", "AgentSilent"),
        "DaemonsCurrent": ("True", "DaemonsCurrent"),
        "DeparturesGuarded": ("False", "AgentSilent"),
    }
    counts, told = decided.reports["a"].counts, make.told(decided)
    assert told["DeparturesGuarded"].message == (
        "pods that are deleted on node n1 end unguarded; node n1: no heartbeat since 9:00"
    )
    assert told["Ready"].message == "2 of 2 MPS daemons unknown; node n1: no heartbeat since 9:00"
    assert (counts.summary, counts.slots.total, counts.slots.used, counts.gpus.ready) == ("0/2", 0, 3, 0)


def test_a_silent_agents_gpus_stay_with_their_share(make: Any) -> None:
    node = make.without_heartbeat(_running(make))
    assert make.plan(make.share(), node).assignments["n1"] == (make.assigned("a", 0), make.assigned("a", 1))


def test_an_agent_that_is_said_to_report_changes_nothing(make: Any) -> None:
    node = make.without_heartbeat(_running(make), status="True")
    assert _statuses(make, make.share(), node) == _statuses(make, make.share(), _running(make))


def test_what_is_known_to_be_wrong_comes_before_what_is_unknown(make: Any) -> None:
    broken = make.node(
        "n2",
        gpus=1,
        assignments=[make.assigned("a", 0, "n2")],
        daemons=[make.daemon("a", 0, "n2", ready=False, reason="DaemonFailed", message="no")],
    )
    told = make.told(make.plan(make.share(), make.without_heartbeat(_running(make)), broken))
    assert (told["Ready"].status, told["Ready"].reason) == ("False", "DaemonNotReady")
    assert told["DaemonsReady"].message == "1 of 3 MPS daemons not ready; GPU GPU-n2-0 of node n2: DaemonFailed: no"
    assert told["DeparturesGuarded"].reason == "AgentSilent"


def test_a_daemon_that_was_not_ready_when_its_agent_fell_silent_is_unknown(make: Any) -> None:
    node = make.without_heartbeat(_running(make, ready=False, reason="Starting"))
    assert _statuses(make, make.share(), node)["DaemonsReady"] == ("Unknown", "AgentSilent")


def test_new_limits_that_wait_for_a_silent_agent_are_unknown(make: Any) -> None:
    share = make.share(clients={"threads": {"default": 25, "max": 60}})
    node = make.without_heartbeat(_running(make))
    assert _statuses(make, share, node)["LimitsEnforced"] == ("Unknown", "AgentSilent")


def test_a_deleted_share_says_that_it_waits_for_a_silent_agent(make: Any) -> None:
    node = make.without_heartbeat(make.node(gpus=1, assignments=[make.assigned("a")], daemons=[make.daemon("a")]))
    ready = make.told(make.plan(make.share(deleting=True), node))["Ready"]
    assert (ready.status, ready.reason) == ("False", "Releasing")
    assert ready.message.endswith("node n1: no heartbeat since 9:00")


def test_of_many_silent_nodes_three_are_named_and_counted(make: Any) -> None:
    nodes = [
        make.without_heartbeat(make.node(f"n{i}", gpus=1, assignments=[make.assigned("a", 0, f"n{i}")]))
        for i in range(5)
    ]
    message = make.told(make.plan(make.share(), *nodes))["DeparturesGuarded"].message
    assert message.startswith("pods that are deleted on nodes n0, n1, n2 and 2 more end unguarded; node n0: ")


def test_a_share_without_gpus_has_no_departures_to_guard(make: Any) -> None:
    assert _statuses(make, make.share())["DeparturesGuarded"] == ("True", "DeparturesGuarded")


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        pytest.param([True, True], True, id="every node mounts it"),
        pytest.param([True, False], False, id="one does not"),
        pytest.param([], False, id="no node has a GPU of it yet"),
    ],
)
def test_a_share_tells_whether_all_its_nodes_mount_the_pre_stop_program(
    make: Any, nodes: list[bool], told: bool
) -> None:
    listed = [
        make.node(
            f"n{number}",
            gpus=1,
            assignments=[make.assigned("a", 0, f"n{number}")],
            status={"preStopMounted": mounted},
        )
        for number, mounted in enumerate(nodes)
    ]
    assert make.plan(make.share(), *listed).reports["a"].counts.pre_stop is told
