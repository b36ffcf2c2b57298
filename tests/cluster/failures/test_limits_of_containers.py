"""Our own containers at the limits of their cgroups: no PID left, no memory left. Who goes on, and what is told."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster.clients.test_departure import ENDLESS_MS, ends
from tests.cluster.failures.test_agent_silence import is_well
from tests.cluster.failures.test_recovery import check_new_client
from tests.cluster.failures.test_standstill import agent_pod, goes_on_as_ever
from tests.cluster.harness import Harness, Share, wait_until
from tests.cluster.node import daemon_of, processes_of_pod
from tests.cluster.node_events import wait_node_event

CGROUPS = Path("/sys/fs/cgroup")
PROGRAM = {"agent": b"agent", "mps": b"mps-supervisor", "broker": b"mps-broker"}
SHORTAGE = "Resource temporarily unavailable"


def cgroup_of(harness: Harness, pid: int, controller: str) -> Path:
    """The cgroup of a container, by one of its processes; the hierarchy of version 1 where the machine has one."""
    for line in harness.in_node(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == controller:
            return CGROUPS / controller / path.lstrip("/")
        if not controllers and (CGROUPS / "cgroup.controllers").exists():
            return CGROUPS / path.lstrip("/")
    raise AssertionError(f"PID {pid} has no cgroup of {controller}")


def main_process(harness: Harness, part: str, share: Share) -> int:
    selector = "app.kubernetes.io/component=agent" if part == "agent" else f"gpushare.dev/share={share.name}"
    (pod,) = harness.system.items("pods", f"--selector={selector}")
    return processes_of_pod(harness, pod["metadata"]["uid"], PROGRAM[part])[0]


@contextmanager
def no_more_pids(harness: Harness, part: str, share: Share) -> Iterator[None]:
    """The part's container may make neither a process nor a thread."""
    cgroup = cgroup_of(harness, main_process(harness, part, share), "pids")
    limit, before = cgroup / "pids.max", (cgroup / "pids.max").read_text()
    limit.write_text("1")  # below what there is: those go on, and none comes
    try:
        yield
    finally:
        with suppress(OSError):  # the container is gone
            limit.write_text(before)


@pytest.mark.long
@pytest.mark.parametrize("part", ["agent", "mps", "broker"])
def test_a_part_without_pids_ends_nobody_and_goes_on_once_it_has_some(
    harness: Harness, pause: float, part: str
) -> None:
    with harness.share("calm", per_node=1) as share, harness.namespace() as tenant:
        names = tenant.neighbours("calm", 2)
        tenant.start(tenant.pod("victim", "calm", "depart", "--role", "victim", "--kernel-ms", ENDLESS_MS, grace=3))
        tenant.wait_event("victim", "started")
        before, checks = daemon_of(harness, share), {name: tenant.checks(name) for name in names}
        with no_more_pids(harness, part, share):
            if part == "mps":
                wait_until("it is told", lambda: SHORTAGE in str(harness.gpu_node()["status"]["daemons"]), 60,
                           lambda: harness.gpu_node()["status"])  # fmt: skip
            time.sleep(pause)
            assert harness.gpu_node()["status"].get("findings", []) == []
            if part != "agent":  # whose work it is
                tenant.kubectl.delete("pod", "victim")
                assert len(ends(tenant, "victim")) == 1
        share.wait_ready(seconds=90)
        for name in names:
            tenant.wait_checks(name, above=checks[name] + int(pause), seconds=60)
        tenant.kubectl.delete("pod", "victim")
        wait_until("all well", lambda: is_well(harness, share), 90, lambda: harness.gpu_node()["status"])
        after = daemon_of(harness, share)
        assert (after["controlPid"], after["serverPid"]) == (before["controlPid"], before["serverPid"])
        goes_on_as_ever(tenant, names)


def out_of_memory(harness: Harness, part: str, share: Share) -> None:
    """The container's limit goes down to what it uses, until the kernel has ended a process of it, whichever it is."""
    cgroup = cgroup_of(harness, main_process(harness, part, share), "memory")
    v1 = (cgroup / "memory.limit_in_bytes").exists()
    limit, usage = ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max", "memory.current")
    counts = cgroup / ("memory.oom_control" if v1 else "memory.events")
    before, allowed = _kills(counts), (cgroup / limit).read_text()

    def ended() -> bool:
        with suppress(OSError):
            (cgroup / limit).write_text(str(int((cgroup / usage).read_text()) - 65536))
        return not cgroup.exists() or _kills(counts) > before

    try:
        wait_until(f"{part} is out of memory", ended, 60)
    finally:
        with suppress(OSError):  # it went with its container
            (cgroup / limit).write_text(allowed)


def _kills(counts: Path) -> int:
    """Kills of a cgroup, as the kernel counts them; 0 once it went with its container."""
    with suppress(OSError):
        return next(int(line.split()[1]) for line in counts.read_text().splitlines() if line.startswith("oom_kill "))
    return 0


@pytest.mark.long
def test_an_agent_that_runs_out_of_memory_comes_back_and_harms_nobody(harness: Harness) -> None:
    with harness.share("calm", per_node=1) as share, harness.namespace() as tenant:
        names = tenant.neighbours("calm", 2)
        server, uid = daemon_of(harness, share)["serverPid"], agent_pod(harness)["metadata"]["uid"]
        out_of_memory(harness, "agent", share)
        wait_until("another agent", lambda: last_end(harness) == "OOMKilled", 60, lambda: agent_pod(harness))
        harness.wait_component("agent", 90)
        assert agent_pod(harness)["metadata"]["uid"] == uid
        wait_until("all well", lambda: is_well(harness, share), 90, lambda: harness.gpu_node()["status"])
        assert daemon_of(harness, share)["serverPid"] == server
        goes_on_as_ever(tenant, names)


def last_end(harness: Harness) -> str:
    (status,) = agent_pod(harness)["status"]["containerStatuses"]
    return str(status["lastState"].get("terminated", {}).get("reason", ""))


@pytest.mark.long
def test_an_mps_pod_out_of_memory_ends_its_own_clients_alone_and_recovers(
    harness: Harness,
) -> None:
    with (
        harness.share("hurt", per_node=1) as hurt,
        harness.share("calm", per_node=1) as calm,
        harness.namespace() as tenant,
    ):
        names = tenant.neighbours("calm", 2)
        harmed = tenant.neighbours("hurt", 2, prefix="hurt")
        server, uuid = daemon_of(harness, hurt)["serverPid"], daemon_of(harness, hurt)["uuid"]
        state = harness.gpu_dirs()[uuid] / "state.json"
        wait_until("both are counted", lambda: json.loads(state.read_text())["contexts"] == 2, 30, state.read_text)
        out_of_memory(harness, "mps", hurt)
        for name in harmed:
            tenant.wait_event(name, "gpu-error")
        wait_until("another server", lambda: daemon_of(harness, hurt).get("serverPid") not in (None, server), 90)
        note = wait_node_event(
            harness, "DaemonRestarted", uuid, "ended with its container", f"{tenant.name}/{harmed[0]}"
        )
        # The kernel may have ended the MPS server alone first, which is an event of its own.
        wait_node_event(harness, "DaemonRestarted", uuid, "its clients, 2 CUDA contexts, got error 806")
        assert f"{tenant.name}/{harmed[1]}" in note
        assert f"{tenant.name}/{names[0]}" not in note
        tenant.delete_pods(*harmed)
        check_new_client(tenant, hurt, "again")
        calm.wait_ready()
        goes_on_as_ever(tenant, names)
