"""What is read from a pod, also where the API left a field out or gave it as null."""

from typing import Any

import pytest

from gpushare.kube import pods

ID = "ab" * 32
APP = {"name": "app", "resources": {"limits": {"gpushare.dev/a": "1"}, "requests": {"cpu": "1"}}}
SIDE = {"name": "side", "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}]}
DEBUG = {"name": "debug"}
POD: Any = {
    "metadata": {"name": "pod", "namespace": "team", "uid": "u1"},
    "spec": {"containers": [APP], "initContainers": [SIDE], "ephemeralContainers": [DEBUG]},
    "status": {
        "phase": "Running",
        "containerStatuses": [{"name": "app", "containerID": f"containerd://{ID}", "state": {"running": {}}}],
        "initContainerStatuses": [{"name": "side", "state": {"waiting": {"reason": "PodInitializing"}}}],
        "ephemeralContainerStatuses": [{"name": "debug", "containerID": "cri-o://" + "cd" * 32}],
    },
}
BARE: Any = {"metadata": {"name": "pod", "namespace": "team", "uid": "u1"}}
NULLS: Any = {
    **BARE,
    "spec": {"containers": [{"name": "app", "resources": None, "env": None}], "initContainers": None},
    "status": {"phase": None, "containerStatuses": None},
}


@pytest.mark.parametrize(
    ("phase", "ended"),
    [("Pending", False), ("Running", False), ("Unknown", False), ("Succeeded", True), ("Failed", True), (None, False)],
)
def test_a_pod_has_ended_once_no_container_of_it_can_run(phase: str | None, ended: bool) -> None:
    assert pods.has_ended({**BARE, "status": {"phase": phase}}) is ended


def test_ephemeral_containers_are_listed_only_if_asked_for() -> None:
    assert pods.containers(POD) == [APP, SIDE]
    assert pods.containers(POD, ephemeral=True) == [APP, SIDE, DEBUG]


def test_a_container_is_found_by_the_runtimes_id_of_whatever_kind_it_is() -> None:
    assert pods.container_name(POD, ID) == "app"
    assert pods.container_name(POD, "cd" * 32) == "debug"


@pytest.mark.parametrize("of_id", ["", "ef" * 32, ID[1:]], ids=["no id", "an unknown one", "the end of one"])
def test_an_id_that_the_status_does_not_show_is_no_containers(of_id: str) -> None:
    assert pods.container_name(POD, of_id) == ""
    assert pods.container_name(POD, of_id, "side") == "side", "as its mounts tell"


def test_a_container_that_waits_has_no_id_and_does_not_run() -> None:
    app, side, _ = pods.container_statuses(POD)
    assert [(pods.container_id(container), pods.is_running(container)) for container in (app, side)] == [
        (ID, True),
        ("", False),
    ]


def test_resources_count_by_request_or_limit() -> None:
    assert pods.limits(APP) == {"gpushare.dev/a": "1"}
    assert sorted(pods.requested_resources(APP)) == ["cpu", "gpushare.dev/a"]


@pytest.mark.parametrize(
    ("spec", "asks"),
    [
        ({"containers": [{"name": "a"}]}, False),
        ({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, False),
        ({"containers": [{"resources": {"limits": {"gpushare.dev/x": "1"}}}]}, True),
        ({"containers": [], "initContainers": [{"resources": {"limits": {"gpushare.dev/x": "1"}}}]}, True),
        ({"containers": [{"name": "a"}], "resourceClaims": [{"name": "gpu"}]}, True),
    ],
    ids=["nothing", "another's GPU", "a slot", "a sidecar's slot", "a claim"],
)
def test_a_pod_asks_for_a_gpu_by_a_slot_or_a_claim(spec: Any, asks: bool) -> None:
    assert pods.asks_for_gpu({"spec": spec}) is asks
    assert pods.may_have_clients({"spec": spec, "status": {"phase": "Running"}}) is asks
    assert not pods.may_have_clients({"spec": spec, "status": {"phase": "Failed"}})


def test_a_variable_that_is_set_by_a_reference_is_empty() -> None:
    assert pods.environment(SIDE) == {"A": "1", "B": ""}


@pytest.mark.parametrize("empty", [BARE, NULLS], ids=["left out", "null"])
def test_what_the_api_leaves_out_is_empty(empty: Any) -> None:
    assert pods.full_name(empty) == "team/pod"
    assert (pods.phase(empty), pods.container_statuses(empty)) == ("", [])
    assert pods.container_name(empty, ID) == ""
    assert [(pods.limits(container), pods.requested_resources(container)) for container in pods.containers(empty)] in (
        [],
        [({}, [])],
    )
    assert [pods.environment(container) for container in pods.containers(empty)] in ([], [{}])


@pytest.mark.parametrize(("spec", "seconds"), [({}, 30.0), ({"terminationGracePeriodSeconds": 0}, 0.0)])
def test_a_pod_without_a_grace_period_has_kubernetes_default(spec: Any, seconds: float) -> None:
    assert pods.grace_period_seconds({**BARE, "spec": spec}) == seconds


HASH = "0123456789abcdef" * 2


def named(name: str, mirror: str = "", owner: str = "Node", **metadata: Any) -> Any:
    """Its uid is its name. `mirror`: the annotation of a mirror pod, whose owner is of the kind `owner`."""
    annotations = {"kubernetes.io/config.hash": HASH, **({pods.MIRROR: mirror} if mirror else {})}
    owners = [{"kind": owner, "name": "n", "controller": True}]
    return {"metadata": {"name": name, "uid": name, "annotations": annotations, "ownerReferences": owners, **metadata}}


def test_a_pod_is_known_by_its_own_uid_whatever_its_annotations_say() -> None:
    assert pods.pods_by_cgroup_uid([named("a")]).keys() == {"a"}
    assert pods.pods_by_cgroup_uid([named("a", mirror=HASH)]).keys() == {"a", HASH}
    assert pods.pods_by_cgroup_uid([named("a", mirror=HASH, owner="ReplicaSet")]).keys() == {"a"}


def test_a_false_mirror_takes_no_other_pods_processes() -> None:
    other, impostor = named("a"), named("b", mirror="a")
    for listed in ([other, impostor], [impostor, other]):
        assert pods.pods_by_cgroup_uid(listed)["a"] is other


def test_a_static_pod_with_two_claimed_mirrors_is_neithers() -> None:
    assert pods.pods_by_cgroup_uid([named("a", mirror=HASH), named("b", mirror=HASH)]).keys() == {"a", "b"}


@pytest.mark.parametrize("field", ["limits", "requests"])
def test_a_resource_of_which_it_asks_for_none_is_not_requested(field: str) -> None:
    """Charts write `nvidia.com/gpu: "0"` as a default."""
    container = {"resources": {field: {"nvidia.com/gpu": "0", "cpu": "1"}}}
    assert pods.requested_resources(container) == ["cpu"]


def test_a_pod_is_taken_up_once_its_kubelet_has_set_its_start() -> None:
    assert not pods.is_taken_up(BARE)
    assert not pods.is_taken_up({**BARE, "status": {"phase": "Pending"}})
    assert pods.is_taken_up({**BARE, "status": {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("app", {"SIGQUIT"}, id="as its status reports it, whatever its spec says"),
        pytest.param("side", {"SIGUSR1", "SIGTERM"}, id="as its spec says, which its runtime may not know"),
        pytest.param("debug", {"SIGTERM"}, id="the default"),
        pytest.param("", {"SIGQUIT", "SIGUSR1", "SIGTERM"}, id="of a container that is not known"),
        pytest.param("gone", {"SIGQUIT", "SIGUSR1", "SIGTERM"}, id="of one that is left out"),
    ],
)
def test_the_signals_that_may_stop_a_container(name: str, expected: set[str]) -> None:
    pod = {
        **BARE,
        "spec": {
            "containers": [{"name": "app", "lifecycle": {"stopSignal": "SIGINT"}}, {"name": "debug"}],
            "initContainers": [{"name": "side", "lifecycle": {"stopSignal": "SIGUSR1"}}],
        },
        "status": {"containerStatuses": [{"name": "app", "stopSignal": "SIGQUIT"}, {"name": "debug"}]},
    }
    assert pods.stop_signals(pod, name) == expected
