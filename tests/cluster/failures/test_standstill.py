"""What stands still without ending, as under too much load: clients go on, and afterwards all is told."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from localcluster.cluster import processes
from localcluster.kubectl import Object
from tests.cluster.failures.test_agent_silence import is_well, reporting
from tests.cluster.failures.test_faults import CULPRIT, LINGER, program, start
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import daemon_of, processes_of_pod, signal_in_node
from tests.cluster.node_events import wait_node_event

BRIEF = """
import sys, time
from gpushare.simulation.client import SimulatedContext
context = SimulatedContext.create()
print('{"event": "up"}', flush=True)
time.sleep(float(sys.argv[1]))
context.close()
"""
"""It ends by itself."""
STILL_SECONDS = 60
"""The least time of the standstill: longer than the operator's Lease, an agent's heartbeat and the time after which
an agent's liveness is doubted."""


COMPONENTS = ("kube-apiserver", "etcd", "kubelet")


@contextmanager
def standing_still(harness: Harness, part: str) -> Iterator[None]:
    """SIGSTOP for a component of the cluster or a part of ours; SIGCONT for what is still there afterwards: a liveness
    probe may have ended it.
    """
    if part in COMPONENTS:
        pid = processes.components(harness.layout)[part].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
        return
    pods = harness.pods_of(part)
    pids = [pid for pod in pods for pid in processes_of_pod(harness, pod["metadata"]["uid"], b"gpushare")]
    assert pids
    for pid in pids:
        signal_in_node(harness, pid, "STOP")
    try:
        yield
    finally:
        for pid in pids:
            with suppress(subprocess.CalledProcessError):  # it is gone
                signal_in_node(harness, pid, "CONT")


def agent_pod(harness: Harness) -> Object:
    (pod,) = harness.pods_of("agent")
    return pod


def restarts(pod: Object) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


@pytest.mark.long
def test_what_happens_while_the_api_server_stands_still_is_told_afterwards(harness: Harness, pause: float) -> None:
    seconds = max(pause, STILL_SECONDS)
    with (
        harness.share("calm", per_node=1) as calm,
        harness.share("hurt", per_node=1) as hurt,
        harness.namespace() as tenant,
    ):
        names = tenant.neighbours("calm", 2)
        start(tenant, program(tenant, "calm", "brief", BRIEF, "25"), program(tenant, "hurt", "notebook", LINGER))
        start(tenant, program(tenant, "calm", "again", BRIEF, "10", restart="Always"))
        start(tenant, program(tenant, "hurt", "culprit", CULPRIT, "15"))
        agent, checks = agent_pod(harness), {name: tenant.checks(name) for name in names}
        with standing_still(harness, "kube-apiserver"):
            time.sleep(seconds)
        wait_until("the API server", tenant.pods, 60)
        assert all(tenant.checks(name) > checks[name] + seconds / 3 for name in names), "they stood still, too"
        assert tenant.wait_ended("brief") == "Succeeded"
        (again,) = wait_until("its restarts are told", lambda: restarted(tenant, "again"), 60)
        assert again["lastState"]["terminated"]["exitCode"] == 0, "it could not attach again meanwhile"
        tenant.delete_pods("again")
        wait_node_event(harness, "GpuFault", tenant.name, seconds=60)
        assert tenant.wait_event("notebook", "gpu-error")["code"] == 700
        tenant.kubectl.delete("pod", "notebook", "--grace-period=1")
        calm.wait_ready()
        hurt.wait_ready(seconds=90)
        wait_until("only two hold slots", lambda: sum(harness.held_by_gpu("calm").values()) == 2)
        wait_until("nobody holds the hurt GPU", lambda: not harness.held_by_gpu("hurt"))
        for share in (calm, hurt):
            share.wait_capacity(8, 90)
            wait_until(
                "all well", lambda share=share: is_well(harness, share), 90, lambda: harness.gpu_node()["status"]
            )
        assert restarts(agent_pod(harness)) == restarts(agent), "the agent was ended for the API server's standstill"
        goes_on_as_ever(tenant, names)


def restarted(tenant: Tenant, name: str) -> list[Object]:
    statuses: list[Object] = tenant.kubectl.get("pod", name)["status"]["containerStatuses"]
    return [status for status in statuses if status["restartCount"] >= 1]


@pytest.mark.long
def test_an_agent_that_stands_still_is_replaced_and_ends_are_settled(harness: Harness) -> None:
    with harness.share("calm", per_node=1) as share, harness.namespace() as tenant:
        names = tenant.neighbours("calm", 2)
        start(tenant, program(tenant, "calm", "brief", BRIEF, "15"), program(tenant, "calm", "deleted", BRIEF, "600"))
        wait_until("AgentReporting", lambda: reporting(harness).get("status") == "True", 60)
        server = daemon_of(harness, share)["serverPid"]
        agent = agent_pod(harness)
        with standing_still(harness, "agent"):
            tenant.kubectl.delete("pod", "deleted", "--grace-period=1")
            wait_until("AgentSilent", lambda: reporting(harness).get("status") == "Unknown", 100)
            wait_until("another agent", lambda: restarts(agent_pod(harness)) > restarts(agent), 150)
        harness.wait_component("agent", 90)
        assert tenant.wait_ended("brief") == "Succeeded"
        wait_until("all well", lambda: is_well(harness, share), 90, lambda: harness.gpu_node()["status"])
        wait_until("only two hold slots", lambda: sum(harness.held_by_gpu("calm").values()) == 2)
        share.wait_capacity(8)
        assert daemon_of(harness, share)["serverPid"] == server
        goes_on_as_ever(tenant, names)


@pytest.fixture(scope="module")
def share(harness: Harness) -> Iterator[Share]:
    with harness.share("calm", per_node=1) as share:
        yield share


@pytest.mark.long
@pytest.mark.parametrize("part", ["operator", "mps", "kubelet", "etcd"])
def test_clients_go_on_while_a_part_stands_still_and_ends_are_found_later(
    harness: Harness, share: Share, pause: float, part: str
) -> None:
    with harness.namespace() as tenant:
        names = tenant.neighbours("calm", 2)
        start(tenant, program(tenant, "calm", "brief", BRIEF, str(pause / 2)))
        checks = {name: tenant.checks(name) for name in names}
        with standing_still(harness, part):
            time.sleep(pause)
        wait_until("the API server", tenant.pods, 60)
        for name in names:
            tenant.wait_checks(name, above=checks[name] + int(pause), seconds=60)
        assert tenant.wait_ended("brief") == "Succeeded"
        wait_until("only two hold slots", lambda: sum(harness.held_by_gpu("calm").values()) == 2, 90)
        share.wait_ready(seconds=120)
        share.wait_capacity(8)
        goes_on_as_ever(tenant, names)


def goes_on_as_ever(tenant: Tenant, names: list[str]) -> None:
    tenant.go_on(names)
    assert all(status["restartCount"] == 0 for pod in tenant.running() for status in pod["status"]["containerStatuses"])
    tenant.start_replaced(tenant.pod("after", "calm", "limits"))
    assert tenant.wait_event("after", "limits")["problems"] == []
