"""Who may attach to a GPU: each sentence is one case."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gpushare.agent.attach.grants import MAX_CONTAINERS, MAX_PODS, PartHolders, closed, granted_pods
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpushare import GpuShare
from gpushare.grant.model import Grant
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.mps.files import MAX_BYTES
from gpushare.mps.wire import ClientGrant, GpuGrants, encode
from tests.unit.agent.observed_pods import UUID, container, container_id, pod, share

GRANTED = ClientGrant(threads=25, memory_mib=4096, processes=2, contexts=8)
"""What `observed_pods.GRANT` is for each process."""
HERE = ("a", UUID)
PLAIN = container("plain", share=None, grant=None)


def holders(
    *pods: Any, places: Mapping[tuple[str, str], Any], claimed: Mapping[str, Grant] | None = None
) -> PartHolders:
    """`places`: (pod, container) -> where its part is; `claimed`: by container of pod-1."""
    return PartHolders(
        pods_by_cgroup_uid(pods),
        {("team", *where): place for where, place in places.items()},
        {("team", "pod-1", name): grant for name, grant in (claimed or {}).items()},
        {"a": share()},
    )


def grants_of(given: PartHolders) -> dict[str, dict[str, ClientGrant | None]]:
    return {pod.name: {item.name: item.grant for item in pod.containers} for pod in granted_pods(given, *HERE)[0]}


def initialising(init: Any, *containers: Any, number: int = 1, started: bool = True) -> Any:
    made = pod(number, *containers or (PLAIN,), with_status=False)
    made["spec"]["initContainers"] = [init]
    made["status"] |= {"startTime": "2026-01-01T00:00:00Z"} if started else {}
    return made


def test_only_a_container_with_a_slot_gets_its_grant() -> None:
    (granted,), _ = granted_pods(holders(pod(1, PLAIN, container()), places={("pod-1", "app"): HERE}), *HERE)
    assert (granted.uid, granted.namespace, granted.name) == (pod(1)["metadata"]["uid"], "team", "pod-1")
    assert [(item.name, item.id, item.grant) for item in granted.containers] == [
        ("app", container_id(11), GRANTED),
        ("plain", container_id(10), None),
    ]


@pytest.mark.parametrize(
    ("sentence", "given", "expected"),
    [
        ("a slot of another GPU of the share is no part of this one",
         holders(pod(), places={("pod-1", "app"): ("a", "GPU-1")}), {}),
        ("to ask for a slot is not to hold one", holders(pod(), places={}), {}),
        ("of two slots of a pod only the one of this GPU counts",
         holders(pod(1, container("one"), container("two")),
                 places={("pod-1", "one"): HERE, ("pod-1", "two"): ("a", "GPU-1")}),
         {"pod-1": {"one": GRANTED, "two": None}}),
        ("a claim's grant is the one that it was prepared with",
         holders(pod(1, container(share=None, grant=None)), places={("pod-1", "app"): HERE},
                 claimed={"app": Grant("a", 7, 700, 1)}),
         {"pod-1": {"app": ClientGrant(threads=7, memory_mib=700, processes=1, contexts=4)}}),
        ("a pod that the webhook missed has the share's default",
         holders(pod(1, container(grant=None)), places={("pod-1", "app"): HERE}),
         {"pod-1": {"app": ClientGrant(threads=25, memory_mib=16384, processes=1, contexts=4)}}),
        ("a grant for another share is none of this one's",
         holders(pod(1, container(grant=Grant("b", 90, 90_000, 9))), places={("pod-1", "app"): HERE}),
         {"pod-1": {"app": ClientGrant(threads=25, memory_mib=16384, processes=1, contexts=4)}}),
        ("a pod that has ended starts nothing",
         holders({**pod(), "status": {"phase": "Failed"}}, places={("pod-1", "app"): HERE}), {}),
        ("an ordinary init container has a part of the GPU that its pod holds",
         holders(initialising(container("init"), container()), places={("pod-1", "app"): HERE}),
         {"pod-1": {"app": GRANTED, "init": GRANTED}}),
        ("one that alone asks for a slot, too, although the kubelet does not list it",
         holders(initialising(container("init")), places={}), {"pod-1": {"init": GRANTED, "plain": None}}),
        ("not on a GPU where its pod has no part",
         holders(initialising(container("init"), container()), places={("pod-1", "app"): ("a", "GPU-1")}), {}),
        ("not before the kubelet has taken up its pod",
         holders(initialising(container("init"), started=False), places={}), {}),
        ("a slot of another share is none of this one's",
         holders(initialising(container("init", share="b")), places={}), {}),
        ("a sidecar counts only once the kubelet lists it",
         holders(initialising({**container("side"), "restartPolicy": "Always"}), places={}), {}),
    ],
)  # fmt: skip
def test_who_has_a_grant(sentence: str, given: PartHolders, expected: object) -> None:
    assert grants_of(given) == expected, sentence


def queued(**clients: Any) -> GpuShare:
    return share(clients=share().clients.wire() | {"queue": {"slots": 32}} | clients)


def test_who_came_before_the_queue_has_a_class_by_which_launches_count() -> None:
    before = holders(pod(), places={("pod-1", "app"): HERE})
    given = replace(before, shares={"a": queued()})
    assert grants_of(given) == {"pod-1": {"app": structs.replace(GRANTED, client_class="Normal")}}
    assert grants_of(replace(given, by_cdi=False)) == {"pod-1": {"app": GRANTED}}, (
        "no library would say what it launches"
    )
    assert grants_of(replace(before, shares={"a": queued(classes={})})) == {"pod-1": {"app": GRANTED}}


def test_an_init_container_has_no_part_once_containers_run() -> None:
    running = initialising(container("init"), container())
    running["status"] |= pod(1, container())["status"]
    assert grants_of(holders(running, places={("pod-1", "app"): HERE})) == {"pod-1": {"app": GRANTED, "init": None}}


ENDED = {"terminated": {"exitCode": 0}}
FAILED = {"terminated": {"exitCode": 1}}


@pytest.mark.parametrize(
    ("sentence", "policy", "state", "named"),
    [
        ("a pod that ends once", "Never", FAILED, []),
        ("it has done its work", "OnFailure", ENDED, []),
        ("the kubelet starts it again after a failure", "OnFailure", FAILED, ["side"]),
        ("the kubelet starts it again always", "Always", ENDED, ["side"]),
        ("it waits to be started again", "Never", {"waiting": {"reason": "CrashLoopBackOff"}}, ["side"]),
        ("its status is not known", "Never", {}, ["side"]),
    ],
)
def test_a_container_that_ended_for_good_does_not_count(
    sentence: str, policy: str, state: object, named: list[str]
) -> None:
    beside = {**PLAIN, "name": "side"}
    made = pod(1, container(), beside, with_status=False)
    made["spec"]["restartPolicy"] = policy
    made["status"]["containerStatuses"] = [{"name": "side", "state": state}]
    assert [*grants_of(holders(made, places={("pod-1", "app"): HERE}))["pod-1"]] == ["app", *named], sentence


@pytest.mark.parametrize(("state", "named"), [(ENDED, []), (FAILED, ["init"]), ({}, ["init"])])
def test_an_init_container_that_ended_does_not_count_during_a_hook(state: object, named: list[str]) -> None:
    made = initialising(PLAIN | {"name": "init"}, container())
    made["status"]["initContainerStatuses"] = [{"name": "init", "state": state}]
    assert [*grants_of(holders(made, places={("pod-1", "app"): HERE}))["pod-1"]] == ["app", *named]


def test_pods_that_run_come_first_and_those_whose_gpu_is_not_known_last() -> None:
    waiting, running = pod(2, with_status=False), pod(3)
    given = holders(
        initialising(container("init"), number=1),
        waiting,
        running,
        places={("pod-2", "app"): HERE, ("pod-3", "app"): HERE},
    )
    assert list(grants_of(given)) == ["pod-3", "pod-2", "pod-1"]


def test_an_ephemeral_container_is_named_and_has_no_part() -> None:
    debugged = pod()
    debugged["spec"]["ephemeralContainers"] = [PLAIN]
    assert grants_of(holders(debugged, places={("pod-1", "app"): HERE})) == {"pod-1": {"app": GRANTED, "plain": None}}


def test_the_id_of_an_instance_that_has_ended_is_not_written() -> None:
    ended = pod()
    ended["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    (granted,), _ = granted_pods(holders(ended, places={("pod-1", "app"): HERE}), *HERE)
    assert granted.containers[0].id == ""


@pytest.mark.parametrize("reason", DaemonReason)
def test_running_containers_attach_while_the_daemon_is_verified(reason: DaemonReason) -> None:
    takes = {DaemonReason.READY, DaemonReason.CLIENT_TABLE_FULL, DaemonReason.BROKER_NOT_READY}
    assert closed(Readiness(reason, "why")) == ("" if reason in takes else f"{reason.value}: why")


def test_why_it_is_closed_is_bounded() -> None:
    assert len(closed(Readiness(DaemonReason.DAEMON_FAILED, "x" * 5000))) == 512


def size(pods: Any) -> int:
    grants = GpuGrants(uuid=UUID, share="a" * 63, closed="\x01" * 512, pods=pods)
    return len(encode(grants))


def crowd(pods: int, parts: int, plain: int) -> PartHolders:
    """Pods with the longest names, each with so many containers."""
    made, places = [], {}
    for number in range(pods):
        mine = [container(f"{index:063d}") for index in range(parts)]
        others = [container(f"p{index:062d}", share=None, grant=None) for index in range(plain)]
        member = pod(number, *others, *mine)
        member["metadata"] |= {"name": f"{number:0253d}", "namespace": "n" * 63}
        made.append(member)
        places |= {("n" * 63, member["metadata"]["name"], item["name"]): HERE for item in mine}
    return PartHolders(pods_by_cgroup_uid(made), places, {}, {"a": share()})


@settings(max_examples=15)
@given(pods=st.integers(0, 300), parts=st.integers(1, 4), plain=st.integers(0, 4))
def test_any_crowd_fits_into_the_file(pods: int, parts: int, plain: int) -> None:
    granted, left_out = granted_pods(crowd(pods, parts, plain), *HERE)
    assert size(granted) <= MAX_BYTES
    assert len(granted) <= MAX_PODS
    assert bool(left_out) is (sum(len(pod.containers) for pod in granted) < pods * (parts + plain))


def test_a_pod_with_3000_containers_keeps_its_parts_and_is_cut() -> None:
    (pod,), left_out = granted_pods(crowd(1, 3, 3000), *HERE)
    assert len(pod.containers) == MAX_CONTAINERS
    assert sum(item.grant is not None for item in pod.containers) == 3
    assert len(left_out) == 1


def test_sixty_pods_of_a_hundred_parts_each_keep_no_other_pod_out() -> None:
    crowded = crowd(60, 100, 0)
    last = pod(999)
    last["metadata"]["namespace"] = "zzz"
    everybody = PartHolders(
        {**crowded.pods, "last": last}, {**crowded.places, ("zzz", "pod-999", "app"): HERE}, {}, crowded.shares
    )
    granted, _ = granted_pods(everybody, *HERE)
    assert len(granted) == 61
    assert size(granted) <= MAX_BYTES
