"""What is kept of a node's pods: all that the agent asks of one, and never more than so much, whatever is in it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.node_pods import MAX_CONTAINERS, MAX_CONTAINERS_UNSTARTED, kept_pod
from gpushare.agent.status.status import foreign_holders
from gpushare.grant.environment import grant_from_environment
from gpushare.kube import pods
from tests.unit.agent.observed_pods import GRANT, container, pod, uid

STARTED = {"startTime": "2026-01-01T00:00:00Z"}
STARTED_AT = {"startedAt": "2026-01-01T00:00:01Z"}
RUNNING: Any = {"phase": "Running", **STARTED}
UNSTARTED: Any = {"phase": "Pending"}


def with_status(given: Any, **status: Any) -> Any:
    return {**given, "status": {**given["status"], **status}}


def kept(given: Any) -> Any:
    result = kept_pod(given)
    assert result is not None
    return result


def test_what_a_container_was_granted_and_whether_it_runs_is_kept() -> None:
    app = {**container(), "image": "x", "ports": [{"containerPort": 1}] * 1000, "command": ["a"] * 1000}
    result = kept(with_status(pod(1, app, container("side", share=None)), **RUNNING))
    first, second = pods.containers(result)
    assert grant_from_environment(pods.environment(first)) == GRANT
    assert pods.limits(first) == {"gpushare.dev/a": "1"}
    assert second == {"name": "side"}
    of_id = pod()["status"]["containerStatuses"][0]["containerID"].split("//")[1]
    assert pods.container_name(result, of_id) == "app"
    assert [pods.is_running(status) for status in pods.container_statuses(result)] == [True, True]


def test_what_a_departure_is_judged_by_is_kept() -> None:
    app = {
        **container(),
        "livenessProbe": {"httpGet": {"path": "/"}, "terminationGracePeriodSeconds": 5},
        "lifecycle": {"stopSignal": "SIGUSR1", "preStop": {"sleep": {"seconds": 1}}},
    }
    times = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
    given = with_status(pod(1, app, **times), **RUNNING)
    given["spec"] |= {"terminationGracePeriodSeconds": 7, "priority": -10, "hostUsers": False}
    given["status"]["containerStatuses"][0] |= {"state": {"running": STARTED_AT}, "stopSignal": "SIGINT"}
    result = kept(given)
    assert (pods.grace_period_seconds(result), pods.phase(result), pods.is_taken_up(result)) == (7.0, "Running", True)
    assert pods.priority(result) == -10
    assert result["spec"]["hostUsers"] is False
    assert result["metadata"] == {"name": "pod-1", "namespace": "team", "uid": uid(1), **times}
    (only,) = pods.containers(result)
    assert only["livenessProbe"] == {"terminationGracePeriodSeconds": 5}
    assert only["lifecycle"] == {"stopSignal": "SIGUSR1"}
    [status] = pods.container_statuses(result)
    assert (status["state"]["running"], status["stopSignal"]) == (STARTED_AT, "SIGINT")


@pytest.mark.parametrize("field", ["containerID", "stopSignal"])
def test_of_a_text_that_is_too_long_nothing_is_kept(field: str) -> None:
    """A part of it would be something else."""
    given = with_status(pod(), **RUNNING)
    given["status"]["containerStatuses"][0][field] = "x" * 10_000
    assert kept(given)["status"]["containerStatuses"][0][field] == ""


def test_which_claims_it_uses_is_kept() -> None:
    claimed = {**container(share=None), "resources": {"claims": [{"name": "gpu", "request": "r"}]}}
    given = with_status(
        pod(1, claimed),
        resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "made"}],
        extendedResourceClaimStatus={
            "resourceClaimName": "slots",
            "requestMappings": [{"containerName": "app", "resourceName": "gpushare.dev/a", "requestName": "r"}],
        },
    )
    given["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    result = kept(given)
    assert result["spec"]["resourceClaims"] == [{"name": "gpu"}]
    assert result["status"]["resourceClaimStatuses"] == given["status"]["resourceClaimStatuses"]
    assert result["status"]["extendedResourceClaimStatus"] == given["status"]["extendedResourceClaimStatus"]
    assert pods.containers(result)[0]["resources"] == {"claims": [{"name": "gpu", "request": "r"}]}


def test_of_a_mirror_pod_it_is_kept_which_static_pod_it_shows() -> None:
    hashed = "0123456789abcdef" * 2
    owners = [{"kind": "Node", "controller": True, "name": "n", "uid": "u"}]
    mirror = pod(1, annotations={pods.MIRROR: hashed, "other": "x" * 1000}, ownerReferences=owners)
    assert pods.mirrored_uid(kept(mirror)) == hashed
    assert pods.mirrored_uid(kept(pod(1, annotations={pods.MIRROR: hashed}))) == ""


@pytest.mark.parametrize(
    ("share", "remains"), [(None, False), ("a", True)], ids=["it asked for no GPU", "it asked for one"]
)
def test_a_pod_that_has_ended_is_kept_only_if_it_may_still_have_clients(share: str | None, remains: bool) -> None:
    """The kubelet may report the end of an evicted pod before its containers have ended."""
    result = kept_pod(with_status(pod(1, container(share=share)), phase="Failed"))
    assert (result is not None) is remains
    assert result is None or (pods.asks_for_gpu(result) and pods.has_ended(result))


@pytest.mark.parametrize(
    ("status", "most"), [(RUNNING, MAX_CONTAINERS), (UNSTARTED, MAX_CONTAINERS_UNSTARTED)], ids=["runs", "does not"]
)
def test_of_many_containers_those_with_a_part_of_a_gpu_come_first(status: Any, most: int) -> None:
    others = [container(f"c{number}", share=None) for number in range(200)]
    whole = {"name": "whole", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    result = kept(with_status(pod(1, *others, whole, container("slot")), **status))
    listed = [item["name"] for item in pods.containers(result)]
    assert len(listed) == most
    assert {"whole", "slot"} <= set(listed)
    holders = [holder.resource for holder in foreign_holders([result])]
    assert holders == (["nvidia.com/gpu"] if pods.is_taken_up(result) else [])


def test_whether_a_scheduler_placed_it_is_kept() -> None:
    bound = {"conditions": [{"type": "Ready", "message": "x" * 1000}, {"type": "PodScheduled", "status": "True"}]}
    assert pods.is_bound(kept(with_status(pod(), **bound)))
    assert not pods.is_bound(kept(pod()))


JUNK = st.recursive(
    st.none() | st.integers() | st.text(max_size=400) | st.just("x" * 5000),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=20), inner, max_size=20),
    max_leaves=100,
)


@given(
    st.integers(0, 3000),
    st.sampled_from(["", "1", "0"]),
    st.sampled_from(["Pending", "Running", "Failed"]),
    st.booleans(),
    JUNK,
)
def test_no_pod_takes_more_than_its_room(count: int, slot: str, phase: str, started: bool, junk: Any) -> None:
    limits = {"limits": {"gpushare.dev/a": slot, **{f"nvidia.com/gpu-{n}": "1" for n in range(50)}}} if slot else {}
    listed = [
        {**container(f"c{number}"), "resources": limits, "args": [junk], "lifecycle": {"preStop": junk}}
        for number in range(count)
    ]
    statuses = [
        {"name": f"c{number}", "containerID": "containerd://" + "f" * 64, "lastState": junk} for number in range(count)
    ]
    crowded = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": junk, "annotations": {"a": "x" * 100_000}},
        "spec": {"containers": listed, "volumes": junk, "resourceClaims": [{"name": "x" * 63}] * count},
        "status": {
            "phase": phase,
            "message": "x" * 5000,
            "containerStatuses": statuses,
            **(STARTED if started else {}),
        },
    }
    size = len(json.dumps(kept_pod(crowded)))
    assert size < (300_000 if started and phase != "Failed" else 12_000)
