"""The containers that the processes on a GPU belong to, and what was granted to them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.observe.usage import ListedProcess, Usage, reading
from gpushare.grant.model import Grant, default_grant
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.process.procfs import Owner
from tests.unit.agent.observed_pods import GRANT, UUID, container, container_id, owner, pod, process, share, uid


def usages(listed: list[ListedProcess], *pods: Any, claimed: Any = None) -> list[Usage]:
    by_uid = pods_by_cgroup_uid(pods)
    return list(reading(UUID, "a", 100.0, 143155, listed, by_uid, share(), claimed=claimed or {}).usages)


def test_the_processes_of_a_container_are_one_usage() -> None:
    (usage,) = usages([process(12, 300), process(11, 200)], pod())
    assert (usage.pids, usage.memory_mib) == ((11, 12), 500)
    assert (usage.namespace, usage.pod, usage.container, usage.grant) == ("team", "pod-1", "app", GRANT)


def test_two_containers_of_a_pod_are_two_usages() -> None:
    both = pod(1, container("one"), container("two"))
    listed = usages([process(11, 100, owner(1, 0)), process(12, 100, owner(1, 1))], both)
    assert [(usage.container, usage.pids) for usage in listed] == [("one", (11,)), ("two", (12,))]


def test_what_a_container_does_past_mps_is_a_usage_apart_from_its_clients() -> None:
    listed = usages([process(11), process(12, mps=False)], pod())
    assert [(usage.mps, usage.pids) for usage in listed] == [(True, (11,)), (False, (12,))]


def test_each_process_of_the_host_stands_alone() -> None:
    listed = usages([process(11, host=True), process(12, host=True)], pod())
    assert [(usage.pod_uid, usage.pids, usage.slot, usage.grant) for usage in listed] == [
        ("", (11,), False, None),
        ("", (12,), False, None),
    ]


def test_our_own_mps_pods_are_no_usage() -> None:
    ours = pod(2)
    ours["spec"]["containers"] = [{"name": "mps", "resources": {"limits": {"internal.gpushare.dev/mps": "1"}}}]
    assert usages([process(11, 66, owner(2), mps=False)], ours) == []


def test_an_unknown_container_is_the_only_one_with_a_slot() -> None:
    (usage,) = usages([process(11)], pod(1, container(), container("proxy", share=None), with_status=False))
    assert (usage.container, usage.grant) == ("app", GRANT)


def test_of_several_containers_with_slots_none_is_guessed() -> None:
    (usage,) = usages([process(11)], pod(1, container("one"), container("two"), with_status=False))
    assert (usage.pod, usage.container, usage.slot, usage.grant) == ("pod-1", "", False, None)


def test_a_container_is_known_by_its_mounts_before_the_status_shows_it() -> None:
    two = pod(1, container("one"), container("two"), with_status=False)
    (usage,) = usages([process(11, 100, Owner(uid(1), container_id(1), "two"))], two)
    assert (usage.container, usage.slot) == ("two", True)


def test_a_sidecar_with_a_slot_is_found_among_the_init_containers() -> None:
    with_sidecar = pod(1, container("app", share=None))
    with_sidecar["spec"]["initContainers"] = [container("sidecar")]
    with_sidecar["status"]["initContainerStatuses"] = [
        {"name": "sidecar", "containerID": f"cri-o://{container_id(77)}"}
    ]
    (usage,) = usages([process(11, 100, Owner(uid(1), container_id(77)))], with_sidecar)
    assert (usage.container, usage.slot, usage.grant) == ("sidecar", True, GRANT)


def test_a_claim_grants_what_it_was_prepared_with_and_no_variable_does() -> None:
    small = Grant("a", 5, 1024, 1)
    (usage,) = usages([process(11)], pod(1, container(share=None)), claimed={("team", "pod-1", "app"): small})
    assert (usage.slot, usage.grant, usage.by_default) == (True, small, False)
    (slot,) = usages([process(11)], pod(1, container()), claimed={("team", "pod-1", "app"): small})
    assert slot.grant == small, "the scheduler made a claim of the slot"


def test_a_claim_of_another_container_pod_or_share_grants_nothing() -> None:
    for name, held in [("other", "a"), ("app", "b")]:
        claimed = {("team", "pod-1", name): Grant(held, 5, 1024, 1), ("team", "pod-2", "app"): GRANT}
        (usage,) = usages([process(11)], pod(1, container(share=None)), claimed=claimed)
        assert (usage.slot, usage.grant) == (False, None)


def test_an_environment_without_a_slot_grants_nothing() -> None:
    (usage,) = usages([process(11)], pod(1, container(share=None)))
    assert (usage.container, usage.slot, usage.grant) == ("app", False, None)


def test_a_slot_of_another_share_grants_nothing_here() -> None:
    (usage,) = usages([process(11)], pod(1, container(share="b", grant=Grant("b", 25, 8192, 1))))
    assert (usage.slot, usage.grant) == (False, None)


@pytest.mark.parametrize(
    "grant", [None, Grant("b", 25, 8192, 1)], ids=["no grant in the pod", "a grant of another share"]
)
def test_a_pod_that_the_webhook_missed_has_the_shares_default(grant: Grant | None) -> None:
    (usage,) = usages([process(11)], pod(1, container(grant=grant)))
    assert (usage.grant, usage.by_default) == (default_grant(share()), True)


def test_annotations_change_no_grant() -> None:
    (usage,) = usages([process(11)], pod(1, annotations={"gpushare.dev/memory": "100Gi"}))
    assert (usage.grant, usage.by_default) == (GRANT, False)


def test_a_pod_that_the_api_does_not_know_is_known_by_its_uid_alone() -> None:
    (usage,) = usages([process(11, 100, owner(9))], pod())
    assert (usage.pod_uid, usage.pod, usage.slot) == (uid(9), "", False)


def test_a_cgroup_made_with_another_pods_name_does_not_count() -> None:
    (usage,) = usages([process(11, 100, owner(1), owner(2))], pod(1), pod(2))
    assert usage.pod == "pod-1"


def test_the_pod_of_a_cluster_within_a_pod_is_the_inner_clusters() -> None:
    (usage,) = usages([process(11, 100, owner(9), owner(1))], pod(1))
    assert usage.pod == "pod-1"


def test_a_static_pods_cgroup_is_named_after_its_files_hash() -> None:
    hashed = "0123456789abcdef" * 2
    owners = [{"kind": "Node", "controller": True}]
    mirror = pod(1, annotations={"kubernetes.io/config.mirror": hashed}, ownerReferences=owners)
    (usage,) = usages([process(11, 100, Owner(hashed, container_id(10)))], mirror)
    assert (usage.pod, usage.slot) == ("pod-1", True)


@pytest.mark.parametrize("annotation", ["config.hash", "config.mirror"])
def test_no_annotation_hides_whose_a_process_is(annotation: str) -> None:
    (usage,) = usages([process(11)], pod(1, annotations={f"kubernetes.io/{annotation}": "0123456789abcdef" * 2}))
    assert (usage.pod, usage.slot) == ("pod-1", True)


def test_an_annotation_gives_a_pod_no_other_pods_processes() -> None:
    impostor = pod(2, annotations={"kubernetes.io/config.mirror": uid(1)}, ownerReferences=[{"kind": "Node"}])
    (usage,) = usages([process(11)], impostor)
    assert usage.pod == ""


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans(), st.integers(0, 10_000)), max_size=48))
def test_every_process_is_in_exactly_one_usage(seen: list[tuple[int, int, bool, int]]) -> None:
    """Pod 3 is not known to the API; number 0 stands for the host."""
    listed = [
        process(pid, mib, owner(number, position), mps=mps, host=number == 0)
        for pid, (number, position, mps, mib) in enumerate(seen)
    ]
    grouped = usages(listed, *(pod(number, container("one"), container("two")) for number in (1, 2)))
    assert sorted(pid for usage in grouped for pid in usage.pids) == list(range(len(seen)))
    assert sum(usage.memory_mib for usage in grouped) == sum(mib for *_, mib in seen)
