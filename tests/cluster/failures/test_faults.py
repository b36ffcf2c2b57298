"""Faults of GPU and daemon: who is hurt is what the design says, everybody is told, and the GPU serves again."""

import uuid as uuids
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpushare.grant.model import most_contexts
from gpushare.simulation.nvml import DriverChannel
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import daemon_of, signal_in_node
from tests.cluster.node_events import wait_node_event

LINGER = """
import sys, time
from gpushare.simulation.client import CudaError, SimulatedContext
context = SimulatedContext.create()
print('{"event": "up"}', flush=True)
try:
    while True:
        context.launch(1)
        context.synchronize()
        time.sleep(0.1)
except CudaError as error:
    print('{"event": "gpu-error", "code": %d}' % error.code, flush=True)
    time.sleep(3600)
"""
"""A notebook: it lives on whatever became of its GPU."""
CULPRIT = """
import sys, time
from gpushare.simulation.client import SimulatedContext
context = SimulatedContext.create()
print('{"event": "up"}', flush=True)
time.sleep(float(sys.argv[1]))
context.fault("illegal_address")
context.synchronize()
"""
CROWD = """
import sys, time
from gpushare.simulation.client import SimulatedContext
contexts = [SimulatedContext.create() for _ in range(int(sys.argv[1]))]
print('{"event": "up"}', flush=True)
time.sleep(3600)
"""
"""One process with so many contexts."""


def program(tenant: Tenant, share: str, name: str, text: str, *arguments: str, **options: Any) -> dict[str, Any]:
    return tenant.pod(name, share, command=["python3", "-c", text, *arguments], **options)


def start(tenant: Tenant, *pods: dict[str, Any]) -> None:
    tenant.start(*pods)
    for pod in pods:
        tenant.wait_event(pod["metadata"]["name"], "up")


def pod_reasons(tenant: Tenant, name: str) -> set[str]:
    return {event["reason"] for event in tenant.kubernetes_events(name)}


@contextmanager
def driver(harness: Harness) -> Iterator[DriverChannel]:
    """The simulated driver's channel for tests."""
    channel = DriverChannel(harness.in_node("/run/gpushare-simulation"))
    try:
        yield channel
    finally:
        channel.close()


def test_an_idle_client_that_outlives_a_fault_is_ended_after_faulttimeout(
    harness: Harness,
) -> None:
    """It is told before and after; it has the timeout; nobody may start on the GPU in between."""
    with harness.share("faulty", per_node=1, faultTimeout="15s") as share, harness.namespace() as tenant:
        start(tenant, program(tenant, "faulty", "notebook", LINGER, grace=2))
        server = daemon_of(harness, share)["serverPid"]
        tenant.start(program(tenant, "faulty", "culprit", CULPRIT, "0"))
        assert tenant.wait_event("notebook", "gpu-error")["code"] == 700
        wait_until("Faulted", lambda: "Faulted" in share.condition("DaemonsReady")["message"], 30, share.condition)
        uuid = daemon_of(harness, share)["uuid"]
        note = wait_node_event(harness, "GpuFault", uuid, f"{tenant.name}/notebook")
        assert "encountered a fatal GPU error" in note
        assert "one of its clients" in note
        wait_until("the warning", lambda: "ClientFaulted" in pod_reasons(tenant, "notebook"))
        since = daemon_of(harness, share)["faultSince"]

        tenant.start_replaced(tenant.pod("next", "faulty", "limits"))
        assert tenant.wait_event("next", "limits")["problems"] == []

        assert daemon_of(harness, share)["heartbeat"] - since > 15
        assert "ProcessEnded" in pod_reasons(tenant, "notebook")
        assert daemon_of(harness, share)["serverPid"] != server
        wait_node_event(harness, "FaultedClientsEnded", uuid)


def test_a_client_after_a_fault_without_survivors_finds_a_new_server(harness: Harness) -> None:
    with harness.share("brief", per_node=1) as share, harness.namespace() as tenant:
        server = daemon_of(harness, share)["serverPid"]
        tenant.start(program(tenant, "brief", "culprit", CULPRIT, "1"))
        tenant.wait_event("culprit", "up")
        tenant.wait_ended("culprit")
        tenant.start(tenant.pod("came-after", "brief", "limits"))
        wait_until("another server", lambda: daemon_of(harness, share).get("serverPid") not in (server, None))
        share.wait_ready()
        uuid = daemon_of(harness, share)["uuid"]
        with driver(harness) as nvml:
            compute = [pid for pid, _ in nvml.ask("processes", uuid=uuid)["compute"]]
        assert len(compute) == 1
        tenant.start_replaced(tenant.pod("next", "brief", "limits"))
        assert tenant.wait_event("next", "limits")["problems"] == []
        note = wait_node_event(harness, "GpuFault", uuid, f"{tenant.name}/culprit")
        assert "came-after" not in note


def test_a_daemon_that_keeps_dying_starts_ever_more_slowly_and_is_told(harness: Harness) -> None:
    with harness.share("dying", per_node=1) as share:
        for restarts in range(1, 4):
            signal_in_node(harness, daemon_of(harness, share)["controlPid"], "KILL")
            wait_until("the next daemon", lambda n=restarts: daemon_of(harness, share)["restarts"] == n, 30)
            wait_until("it serves", lambda: daemon_of(harness, share)["reason"] == "Ready", 30)
        uuid = daemon_of(harness, share)["uuid"]
        wait_node_event(harness, "DaemonRestarted", uuid, "the control daemon was ended by SIGKILL")
        share.wait_ready()


def test_a_wedged_server_is_told_and_its_gpu_takes_no_pod_until_it_answers(harness: Harness) -> None:
    with harness.share("wedged", per_node=1) as share, harness.namespace() as tenant:
        server = daemon_of(harness, share)["serverPid"]
        signal_in_node(harness, server, "STOP")
        try:
            wait_until("told", lambda: "ControlTimeout" in share.condition("DaemonsReady")["message"], 40)
            share.wait_capacity(0)
        finally:
            signal_in_node(harness, server, "CONT")
        share.wait_ready()
        assert daemon_of(harness, share)["serverPid"] == server, "nobody needed to die"
        tenant.start_replaced(tenant.pod("next", "wedged", "limits"))
        assert tenant.wait_event("next", "limits")["problems"] == []


def test_a_full_client_table_withdraws_free_slots_and_hurts_no_client(harness: Harness) -> None:
    """One slot cannot fill it; three of four processes each can."""
    clients = {"perGpu": 8, "processes": 4, "threads": {"default": 5, "max": 25}, "memory": {"default": "8Gi"}}
    most = most_contexts(4, 8)
    with harness.share("crowded", per_node=1, clients=clients) as share, harness.namespace() as tenant:
        names = tenant.neighbours("crowded", 2)
        crowd = {f"crowd-{size}-{number}": size for number, size in enumerate((most, most, 48 - 2 * most - len(names)))}
        start(tenant, *(program(tenant, "crowded", name, CROWD, str(size)) for name, size in crowd.items()))
        uuid = daemon_of(harness, share)["uuid"]
        assert "48 of 48 client contexts are taken" in wait_node_event(harness, "ClientTableFull", uuid)
        share.wait_capacity(len(names) + len(crowd))
        assert share.condition()["status"] == "True", "it serves"
        wait_until("told", lambda: "ClientTableFull" in share.condition("DaemonsReady")["message"], 30, share.condition)
        before = {name: tenant.checks(name) for name in names}
        tenant.delete_pods(*crowd)
        share.wait_capacity(8)
        for name in names:
            wait_until(f"{name} goes on", lambda name=name: tenant.checks(name) > before[name])


@pytest.fixture
def lost(harness: Harness) -> Iterator[Any]:
    """Loses a GPU, and has it back in the end."""
    gone: list[str] = []

    def lose(uuid: str) -> None:
        with driver(harness) as channel:
            channel.ask("lose", uuid=uuid)
        gone.append(uuid)

    yield lose
    with driver(harness) as channel:
        for uuid in gone:
            channel.ask("recover", uuid=uuid)


def test_a_lost_gpu_is_told_with_its_xid_and_offered_again_once_it_is_back(harness: Harness, lost: Any) -> None:
    with harness.share("lossy", per_node=1) as share:
        uuid = daemon_of(harness, share)["uuid"]
        lost(uuid)
        wait_node_event(harness, "GpuLost", uuid)
        wait_node_event(harness, "GpuFault", uuid, "Xid 79")
        wait_until("GpuLost", lambda: "GpuLost" in share.condition("DaemonsReady")["message"], 30, share.condition)
        share.wait_capacity(0)
        with driver(harness) as channel:
            channel.ask("recover", uuid=uuid)
        share.wait_ready(seconds=90)
        share.wait_capacity(8)


def test_a_gpu_that_nvml_does_not_describe_is_named_and_the_others_serve(harness: Harness) -> None:
    """Also after a restart of the agent, which knows nothing of that GPU then."""
    with harness.share("garbled") as share, driver(harness) as channel:
        whole = harness.gpu_node()["status"]["gpus"]
        uuid = whole[0]["uuid"]
        channel.ask("garble", uuid=uuid)
        try:
            restart_agent(harness)
            told = "NVML does not describe GPU 0, so it is left out: Unknown Error"
            wait_until("it is named", lambda: told in str(nvml_condition(harness)), 60, lambda: nvml_condition(harness))
            share.wait_capacity(8 * (len(whole) - 1), seconds=60)
        finally:
            channel.ask("ungarble", uuid=uuid)
        share.wait_ready(len(whole), seconds=90)
        share.wait_capacity(8 * len(whole))


def nvml_condition(harness: Harness) -> dict[str, Any]:
    conditions = harness.gpu_node()["status"]["conditions"]
    return next((told for told in conditions if told["type"] == "NvmlReachable"), {})


def test_a_card_in_the_place_of_another_is_taken_and_the_old_uuid_goes(harness: Harness) -> None:
    """A machine that was moved comes back with other GPUs: of the old ones nothing may keep perNode full. Its agent
    starts again with it: one that has seen a GPU waits for it to come back.
    """
    with harness.share("exchanged", per_node=1) as share, harness.namespace() as tenant, driver(harness) as channel:
        uuid = daemon_of(harness, share)["uuid"]
        other = f"GPU-{uuids.uuid4()}"
        channel.ask("exchange", uuid=uuid, to=other)
        try:
            restart_agent(harness)
            wait_until("a GPU that is there", lambda: held_by(harness, share) - {uuid}, 120, harness.gpu_node)
            share.wait_ready(1, seconds=90)
            share.wait_capacity(8)
            assert uuid not in {gpu["uuid"] for gpu in harness.gpu_node()["status"]["gpus"]}
            tenant.start_replaced(tenant.pod("next", "exchanged", "limits"))
            assert tenant.wait_event("next", "limits")["problems"] == []
        finally:
            channel.ask("exchange", uuid=other, to=uuid)
            restart_agent(harness)


def restart_agent(harness: Harness) -> None:
    harness.restart_pods("agent", force=True)
    harness.wait_component("agent")


def held_by(harness: Harness, share: Share) -> set[str]:
    assigned = harness.gpu_node()["spec"].get("assignments") or []
    return {assignment["uuid"] for assignment in assigned if assignment["share"] == share.name}
