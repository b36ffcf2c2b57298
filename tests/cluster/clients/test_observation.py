"""Granted against observed: who uses more of a GPU than granted is told, and ended where the share says so."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare.simulation.nvml import DriverChannel
from tests.cluster.harness import Harness, Share, Tenant, condition, holds_for, wait_until
from tests.cluster.node import daemon_of, processes_of_part, processes_of_pod

PROGRAM = (Path(__file__).parent / "offender.py").read_text()
OWN_MOUNTS = (Path(__file__).parent / "own_mounts.py").read_text()
GRANTED_MIB = 8192
FOUND_SECONDS = 30
"""Two readings two seconds apart, of an NVML asked every two, and a status that waits up to ten for its turn."""


@pytest.fixture(scope="module")
def audited(harness: Harness) -> Iterator[Share]:
    with harness.share("audited", per_node=1) as share:
        yield share


@pytest.fixture(scope="module")
def strict(harness: Harness) -> Iterator[Share]:
    clients = {"perGpu": 8, "processes": 3, "threads": {"default": 25}, "memory": {"default": "8Gi"}}
    with harness.share("strict", per_node=1, enforcement="Terminate", clients=clients) as share:
        yield share


def start_offender(
    tenant: Tenant,
    name: str,
    share: str,
    mib: int = 12_000,
    processes: int = 1,
    finally_do: str = "exit",
    **options: Any,
) -> None:
    command = ["python3", "-c", PROGRAM, str(mib), str(processes), finally_do]
    tenant.start(tenant.pod(name, share, command=command, env=[{"name": "PROGRAM", "value": PROGRAM}], **options))
    wait_until(
        f"{processes} processes of {name}",
        lambda: len(tenant.events_of(name, "started")) == processes,
        60,
        lambda: tenant.explain(name),
    )


def findings(harness: Harness, pod: str) -> list[dict[str, Any]]:
    return [
        finding for finding in harness.gpu_node().get("status", {}).get("findings", []) if finding.get("pod") == pod
    ]


def wait_finding(harness: Harness, pod: str) -> dict[str, Any]:
    return wait_until(f"a finding about {pod}", lambda: findings(harness, pod), FOUND_SECONDS)[0]


def events(tenant: Tenant, pod: str, reason: str) -> list[Any]:
    return [event for event in tenant.kubernetes_events(pod) if event["reason"] == reason]


def restart_agent(harness: Harness) -> None:
    harness.restart_pods("agent")
    harness.wait_component("agent")


def nobody_is_hurt(tenant: Tenant, names: list[str]) -> None:
    """Each neighbour goes on and has found no wrong result."""
    before = {name: tenant.checks(name) for name in names}
    for name in names:
        wait_until(f"{name} goes on", lambda name=name: tenant.checks(name) > before[name], 20)
        assert not tenant.events_of(name, "wrong")
        assert not tenant.events_of(name, "gpu-error")


def test_audit_tells_both_figures_of_a_lost_memory_limit_and_ends_none(harness: Harness, audited: Share) -> None:
    with harness.namespace() as tenant:
        names = tenant.neighbours("audited", 2)
        start_offender(tenant, "hog", "audited")
        finding = wait_finding(harness, "hog")
        assert (finding["reason"], finding["granted"]) == ("MemoryAboveGrant", GRANTED_MIB)
        assert finding["observed"] > 12_000
        figures = (f"{finding['observed']} MiB", f"{GRANTED_MIB} MiB")

        def told() -> dict[str, Any]:
            return audited.condition("LimitsEnforced")

        wait_until("the share says so", lambda: told().get("reason") == "GrantsExceeded", 20, told)
        within = condition(harness.gpu_node(), "WithinGrants")
        (event,) = wait_until("the event", lambda: events(tenant, "hog", "MemoryAboveGrant"), 10)
        for text in (told()["message"], within["message"], event["message"]):
            assert all(figure in text for figure in figures), text
        assert audited.condition("Ready")["status"] == "True"

        restart_agent(harness)
        holds_for("the finding stands as it was", lambda: findings(harness, "hog") == [finding], 15)
        assert len(events(tenant, "hog", "MemoryAboveGrant")) == 1
        assert not tenant.events_of("hog", "gpu-error")
        nobody_is_hurt(tenant, names)

        tenant.delete_pods("hog")
        wait_until("the finding goes", lambda: not findings(harness, "hog"), FOUND_SECONDS)
        wait_until("the share says so", lambda: told().get("status") == "True", 20, told)


@pytest.mark.usefixtures("strict")
def test_terminate_ends_it_in_order_and_the_neighbours_go_on(harness: Harness) -> None:
    with harness.namespace() as tenant:
        names = tenant.neighbours("strict", 3)
        start_offender(tenant, "hog", "strict")
        error = tenant.wait_event("hog", "gpu-error", 30)
        seconds = error["at"] - tenant.events_of("hog", "started")[0]["at"]
        print(f"ended {seconds:.1f} s after it was above its grant")
        assert error["code"] == 810
        assert seconds < 15
        (event,) = wait_until("the event", lambda: events(tenant, "hog", "ClientTerminated"), 10)
        assert "12" in event["message"]
        assert f"{GRANTED_MIB} MiB" in event["message"]
        wait_until("the finding goes with its process", lambda: not findings(harness, "hog"), FOUND_SECONDS)
        nobody_is_hurt(tenant, names)


@pytest.mark.usefixtures("strict")
def test_a_client_that_keeps_its_memory_is_ended_once_and_then_signalled(harness: Harness) -> None:
    """A second terminate_client for it would hang the daemon: nobody could start any more. It ignores SIGTERM, too, so
    only the last of the agents' signals takes the memory back.
    """
    with harness.namespace() as tenant:
        names = tenant.neighbours("strict", 2)
        start_offender(tenant, "hog", "strict", finally_do="linger")
        error = tenant.wait_event("hog", "gpu-error", 30)
        wait_until("the finding tells its end", lambda: wait_finding(harness, "hog").get("ended"), FOUND_SECONDS)
        restart_agent(harness)
        nobody_is_hurt(tenant, tenant.neighbours("strict", 1, prefix="late"))

        def phase() -> Any:
            return tenant.kubectl.get("pod", "hog")["status"]["phase"]

        wait_until("its process is gone", lambda: phase() == "Failed", 60, lambda: tenant.explain("hog"))
        print(f"gone {time.time() - error['at']:.1f} s after its contexts were ended")
        assert len(events(tenant, "hog", "ClientTerminated")) == 1
        assert len(events(tenant, "hog", "MemoryAboveGrant")) == 1
        told = [event["message"] for event in events(tenant, "hog", "ProcessEnded")]
        assert {text.split(" to ")[0] for text in told} == {"Sent SIGTERM", "Sent SIGKILL"}
        assert all(f"its grant is {GRANTED_MIB} MiB" in text for text in told)
        wait_until("the finding goes with its process", lambda: not findings(harness, "hog"), FOUND_SECONDS)
        nobody_is_hurt(tenant, names)


@pytest.mark.usefixtures("strict")
def test_a_container_of_several_processes_is_ended_as_a_whole(harness: Harness) -> None:
    """One process ended alone may end its container, and cut off the kernels of the others: the neighbours' end."""
    with harness.namespace() as tenant:
        names = tenant.neighbours("strict", 2)
        start_offender(tenant, "crowd", "strict", mib=4_000, processes=3, finally_do="linger")
        finding = wait_finding(harness, "crowd")
        assert (finding["reason"], finding["granted"]) == ("MemoryAboveGrant", GRANTED_MIB)
        wait_until("all are ended", lambda: len(tenant.events_of("crowd", "gpu-error")) == 3, 20)
        assert [error["code"] for error in tenant.events_of("crowd", "gpu-error")] == [810] * 3
        nobody_is_hurt(tenant, names)
        told = [
            event["message"] for event in tenant.kubernetes_events("crowd") if event["reason"] == "LimitVariableChanged"
        ]
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT='garbage' where its grant is" in told[0], "as its children began"


@contextmanager
def past_mps(harness: Harness, tenant: Tenant, share: Share, pod: str, program: bytes = b"sleep") -> Iterator[None]:
    """NVML lists the pod's process on the share's GPU, as one that is no MPS client."""
    uid = tenant.kubectl.get("pod", pod)["metadata"]["uid"]
    (pid,) = processes_of_pod(harness, uid, program)
    driver = DriverChannel(harness.in_node("/run/gpushare-simulation"))
    uuid = daemon_of(harness, share)["uuid"]
    driver.ask("add_process", uuid=uuid, pid=pid, memory_mib=700)
    try:
        yield
    finally:
        driver.ask("remove_process", uuid=uuid, pid=pid)
        driver.close()


@pytest.mark.parametrize("enforcement", ["Audit", "Terminate"])
def test_a_process_past_mps_is_told_and_with_terminate_ended(
    harness: Harness, audited: Share, strict: Share, enforcement: str
) -> None:
    share = strict if enforcement == "Terminate" else audited
    with harness.namespace() as tenant:
        names = tenant.neighbours(share.name, 2)
        tenant.start(tenant.pod("stray", share.name, command=["sleep", "600"], grace=1))
        wait_until("it runs", lambda: tenant.kubectl.get("pod", "stray")["status"].get("phase") == "Running", 30)
        with past_mps(harness, tenant, share, "stray"):
            finding = wait_finding(harness, "stray")
            assert (finding["reason"], finding["granted"], finding["observed"]) == ("NotAnMpsClient", 0, 700)
            assert len(events(tenant, "stray", "NotAnMpsClient")) == 1
            if enforcement == "Terminate":
                wait_until("it is gone", lambda: tenant.kubectl.get("pod", "stray")["status"]["phase"] == "Failed", 40)
                assert events(tenant, "stray", "ProcessEnded")
            else:
                holds_for("it goes on", lambda: len(tenant.running()) == 3, 15)
            nobody_is_hurt(tenant, names)
        wait_until("the finding goes", lambda: not findings(harness, "stray"), FOUND_SECONDS)


def start_with_own_mounts(tenant: Tenant, name: str, share: str, doublings: int) -> None:
    """The container has left what the runtime mounted, which `baseline` allows."""
    pod = tenant.pod(name, share, command=["python3", "-c", OWN_MOUNTS, str(doublings)], grace=1)
    del pod["spec"]["securityContext"]["seccompProfile"]
    tenant.start(pod)
    assert tenant.wait_event(name, "pivoted", 60)["mounts"] == 2**doublings


def resident_mib(harness: Harness) -> int:
    """The most memory that the agent ever had."""
    (pid,) = processes_of_part(harness, "agent")
    status = harness.in_node(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def restarts(harness: Harness) -> int:
    return sum(
        status["restartCount"] for pod in harness.pods_of("agent") for status in pod["status"]["containerStatuses"]
    )


def test_terminate_ends_a_process_past_mps_that_pivoted_from_its_mounts(harness: Harness, strict: Share) -> None:
    """And nobody says of the node that CDI is off: what such a process sees is of its own making."""
    with harness.namespace(enforce="baseline") as tenant:
        names = tenant.neighbours("strict", 1)
        start_with_own_mounts(tenant, "stray", "strict", doublings=0)
        with past_mps(harness, tenant, strict, "stray", b"pivoted"):
            finding = wait_finding(harness, "stray")
            assert (finding["reason"], finding["container"]) == ("NotAnMpsClient", "app")
            wait_until("it is gone", lambda: tenant.kubectl.get("pod", "stray")["status"]["phase"] == "Failed", 40)
        assert events(tenant, "stray", "ProcessEnded")
        assert not events(tenant, "stray", "CdiEditsMissing")
        nobody_is_hurt(tenant, names)
        wait_until("the finding goes", lambda: not findings(harness, "stray"), FOUND_SECONDS)


def test_as_many_mounts_as_there_can_be_cost_the_agent_nothing(harness: Harness, audited: Share) -> None:
    with harness.namespace(enforce="baseline") as tenant:
        names = tenant.neighbours("audited", 1)
        before, restarted = resident_mib(harness), restarts(harness)
        start_with_own_mounts(tenant, "stray", "audited", doublings=15)
        with past_mps(harness, tenant, audited, "stray", b"pivoted"):
            finding = wait_finding(harness, "stray")
            assert (finding["reason"], finding["container"]) == ("NotAnMpsClient", "app")
            time.sleep(6)  # three readings more
            nobody_is_hurt(tenant, names)
        wait_until("the finding goes", lambda: not findings(harness, "stray"), FOUND_SECONDS)
        assert restarts(harness) == restarted
        assert resident_mib(harness) - before < 40


@pytest.mark.long
@pytest.mark.usefixtures("audited")
def test_mounts_that_are_not_known_for_a_minute_are_told_on_the_pod(harness: Harness) -> None:
    with harness.namespace(enforce="baseline") as tenant:
        start_with_own_mounts(tenant, "stray", "audited", doublings=15)
        (event,) = wait_until("the event", lambda: events(tenant, "stray", "MountsUnknown"), 120)
        assert "container app of pod" in event["message"]
        assert "mountinfo: it has more than 1048576 bytes" in event["message"]
        assert not events(tenant, "stray", "CdiEditsMissing")
