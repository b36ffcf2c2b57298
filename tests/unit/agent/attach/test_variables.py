"""What a process that attached says of its limits: told where it is not the grant."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpushare.agent.attach.variables import (
    VariableReports,
    odd_variables,
    read_environments,
    variable_events,
)
from gpushare.api.names import ENV_MEMORY, ENV_THREADS
from gpushare.kube.events.event import NOTE_BYTES
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.mps.wire import Arrival, BrokerState, ClientGrant, GpuGrants, GrantedContainer, GrantedPod
from tests.unit.agent.observed_pods import pod, uid

GRANT = ClientGrant(threads=10, memory_mib=2048, processes=2)
PODS = pods_by_cgroup_uid([pod()])
GRANTS = GpuGrants(
    uuid="GPU-0",
    share="a",
    pods=[
        GrantedPod(uid=uid(1), namespace="team", name="pod-1", containers=[GrantedContainer(name="app", grant=GRANT)])
    ],
)
ARRIVAL = Arrival(pid=7, pod_uid=uid(1), container="app", at=101.0)


@pytest.mark.parametrize(
    ("sentence", "environment", "odd"),
    [
        ("the grant as the container gets it", {ENV_THREADS: "10", ENV_MEMORY: "0=2048M"}, []),
        ("nothing is said", {}, []),
        ("less than the grant", {ENV_THREADS: "5.5", ENV_MEMORY: "0=1G"}, []),
        ("as much in another unit", {ENV_MEMORY: "0=2GB"}, []),
        ("more threads", {ENV_THREADS: "100"}, [ENV_THREADS]),
        ("threads that are no number", {ENV_THREADS: "garbage"}, [ENV_THREADS]),
        ("no threads", {ENV_THREADS: ""}, [ENV_THREADS]),
        ("more memory", {ENV_MEMORY: "0=64G"}, [ENV_MEMORY]),
        ("memory that is no limit", {ENV_MEMORY: "garbage"}, [ENV_MEMORY]),
        ("a fraction, which MPS takes for 1 MiB", {ENV_MEMORY: "0=1.5G"}, [ENV_MEMORY]),
        ("a device that the client does not see", {ENV_MEMORY: "1=1G"}, [ENV_MEMORY]),
        ("both", {ENV_THREADS: "-1", ENV_MEMORY: "0=1T"}, [ENV_THREADS, ENV_MEMORY]),
    ],
)
def test_what_is_odd(sentence: str, environment: dict[str, str], odd: list[str]) -> None:
    assert [variable.name for variable in odd_variables(environment, GRANT)] == odd, sentence


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_variable_is_judged_and_fits_into_a_plain_note(threads: str, memory: str) -> None:
    environments = {7: {ENV_THREADS: threads, ENV_MEMORY: memory}}
    for event in variable_events([ARRIVAL], environments, GRANTS, "a", PODS):
        assert len(event.note.encode()) <= NOTE_BYTES
        assert event.note.replace("…", "").isascii()
        assert event.note.isprintable()


def test_the_event_names_pod_variable_value_grant_and_what_follows() -> None:
    [event] = variable_events([ARRIVAL], {7: {ENV_MEMORY: "garbage"}}, GRANTS, "a", PODS)
    assert (event.regarding["name"], event.type, event.happened) == ("pod-1", "Warning", True)
    assert event.note == (
        "GPU GPU-0 of GpuShare a: a process of container app of pod team/pod-1 attached with "
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT='garbage' where its grant is 0=2048M: CUDA may not be able to read it, and "
        "then holds no memory limit for this process. Leave the variable as the container gets it, or set a lower "
        "value in the same form."
    )


def test_of_a_container_whose_grant_is_not_known_nothing_is_told() -> None:
    other = structs.replace(ARRIVAL, container="other")
    assert list(variable_events([other], {7: {ENV_MEMORY: "garbage"}}, GRANTS, "a", PODS)) == []


def test_each_arrival_is_looked_at_once_and_none_from_before_this_agent() -> None:
    reports = VariableReports(started=100.0)
    earlier, later = (structs.replace(ARRIVAL, at=at) for at in (99.0, 102.0))

    def new(*arrivals: Arrival) -> list[Arrival]:
        return reports.new(BrokerState(uuid="GPU-0", heartbeat=0.0, listening=True, arrivals=list(arrivals)))

    assert new(earlier, ARRIVAL) == [ARRIVAL]
    assert new(earlier, ARRIVAL) == []
    assert new(ARRIVAL, later) == [later]
    assert new(later, structs.replace(ARRIVAL, at=103.0, pod_uid="")) == [], "of no pod that anybody could ask"


def test_a_pid_that_another_pod_has_by_now_is_not_taken_for_the_arrival(tmp_path: Path) -> None:
    for pid, owner in ((7, uid(1)), (8, uid(2))):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_bytes(f"HOME=/\0{ENV_MEMORY}=garbage\0{ENV_MEMORY}=0=1M\0".encode())
        (tmp_path / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{owner}/{'ab' * 32}\n")
    arrivals = [structs.replace(ARRIVAL, pid=pid) for pid in (7, 8, 9)]
    assert read_environments(arrivals, tmp_path) == {7: {ENV_MEMORY: "garbage"}}
