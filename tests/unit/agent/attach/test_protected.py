"""How many protected clients of a GPU are let in, and who: those that were, then those that came first."""

from typing import Any

import pytest

from gpushare.agent.attach.files import GrantFiles
from gpushare.agent.attach.grants import PartHolders, granted_pods
from gpushare.api.client_class import ClientClass
from gpushare.api.gpushare import GpuShare
from gpushare.grant.model import Grant
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.mps.files import read_model
from gpushare.mps.layout import gpu_dir
from gpushare.mps.wire import GpuGrants, GrantedPod
from tests.unit.agent.attach.test_files import READY, taken
from tests.unit.agent.attach.test_grants import HERE
from tests.unit.agent.observed_pods import UUID, container, pod, share

CLASSES: dict[str, Any] = {"protected": {"perGpu": 2}}


def with_classes(classes: dict[str, Any] | None = None) -> GpuShare:
    clients = share().clients.wire() | {"classes": CLASSES if classes is None else classes}
    return GpuShare.model_validate({"metadata": {"name": "a"}, "spec": {"clients": clients}})


def client(number: int, started: int, client_class: ClientClass = ClientClass.PROTECTED) -> Any:
    beside = 50 if client_class is ClientClass.BEST_EFFORT else 0
    grant = Grant("a", 25, 8192, 2, client_class=client_class, threads_beside_protected=beside)
    made = pod(number, container(grant=grant))
    made["status"]["startTime"] = f"2026-01-01T00:00:0{started}Z"
    return made


def holders(*pods: Any, of: GpuShare | None = None, by_cdi: bool = True) -> PartHolders:
    places = {("team", item["metadata"]["name"], "app"): HERE for item in pods}
    return PartHolders(pods_by_cgroup_uid(pods), places, {}, {"a": of or with_classes()}, by_cdi)


def outcome(pods: Any) -> dict[str, str]:
    """What each pod's container has: its class, or `refused`."""
    return {
        item.name: "refused" if item.containers[0].too_many_protected else str(item.containers[0].grant.client_class)
        for item in pods
    }


def granted(given: PartHolders, before: tuple[GrantedPod, ...] = ()) -> tuple[GrantedPod, ...]:
    return granted_pods(given, *HERE, before)[0]


def test_one_too_many_is_refused_and_not_made_normal() -> None:
    pods = granted(holders(client(1, 3), client(2, 1), client(3, 2), client(4, 0, ClientClass.BEST_EFFORT)))
    assert outcome(pods) == {"pod-1": "refused", "pod-2": "Protected", "pod-3": "Protected", "pod-4": "BestEffort"}
    refused = next(item.containers[0] for item in pods if item.name == "pod-1")
    assert refused.grant is None


def test_who_was_let_in_stays_whoever_comes_and_whatever_is_allowed() -> None:
    first = granted(holders(client(2, 5), client(3, 5)))
    later = granted(holders(client(1, 4), client(2, 5), client(3, 5)), first)
    assert outcome(later) == {"pod-1": "refused", "pod-2": "Protected", "pod-3": "Protected"}
    fewer = with_classes({"protected": {"perGpu": 1}})
    assert outcome(granted(holders(client(2, 5), client(3, 5), of=fewer), first)) == {
        "pod-2": "Protected",
        "pod-3": "Protected",
    }
    assert outcome(granted(holders(client(1, 4), client(3, 5)), later)) == {"pod-1": "Protected", "pod-3": "Protected"}


@pytest.mark.parametrize("given", [
    pytest.param(holders(client(1, 1, ClientClass.BEST_EFFORT), by_cdi=False), id="without CDI there is no library"),
    pytest.param(holders(client(1, 1, ClientClass.BEST_EFFORT), of=share()), id="the share has classes no more"),
])  # fmt: skip
def test_where_classes_are_off_the_grant_has_none(given: PartHolders) -> None:
    (only,) = granted(given)
    assert only.containers[0].grant is not None
    assert (only.containers[0].grant.client_class, only.containers[0].grant.sm_percent) == ("", 0)


def test_a_part_of_all_sms_is_no_part() -> None:
    everything = client(1, 1, ClientClass.BEST_EFFORT)
    (only,) = granted(holders(everything))
    assert only.containers[0].grant is not None
    assert only.containers[0].grant.sm_percent == 50
    for variable in everything["spec"]["containers"][0]["env"]:
        if variable["name"] == "GPUSHARE_THREADS_BESIDE_PROTECTED":
            variable["value"] = "100"
    (only,) = granted(holders(everything))
    assert only.containers[0].grant is not None
    assert only.containers[0].grant.sm_percent == 0


def test_a_new_agent_knows_by_the_file_who_was_let_in(tmp_path: Any) -> None:
    (tmp_path / UUID).mkdir()
    directory = gpu_dir(tmp_path, UUID)
    GrantFiles().update(taken(directory), READY, holders(client(2, 5), client(3, 5)))
    GrantFiles().update(taken(directory), READY, holders(client(1, 4), client(2, 5), client(3, 5)))
    written = read_model(directory.grants, GpuGrants).value
    assert written is not None
    assert outcome(written.pods) == {"pod-1": "refused", "pod-2": "Protected", "pod-3": "Protected"}
