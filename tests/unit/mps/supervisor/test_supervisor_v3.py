"""Supervisor and attach broker with daemons of MPS v3: real processes and sockets, against a stand-in that is held to
NVIDIA's documentation and untested on hardware.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpushare.mps.broker.broker import BrokerSettings, serve
from gpushare.mps.clock import boot_clock
from gpushare.mps.control_v3 import DEFAULT_NAMESPACE, SERVER, ControlProgramV3
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import GpuDir, namespace_name
from gpushare.mps.protocol import ProtocolSetting
from gpushare.mps.supervisor.supervisor import Supervisor
from gpushare.mps.wire import (
    BrokerState,
    ClientGrant,
    DaemonLimits,
    GpuGrants,
    GrantedContainer,
    GrantedPod,
    ServedClients,
)
from gpushare.process.procfs import Owner
from gpushare.simulation import bin_dir
from tests.unit.mps.supervisor.supervised_node import LIMITS, SECONDS, Node, simulated_driver, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a multi-user daemon is for root alone")
SMALL = ClientGrant(threads=25, memory_mib=4096, processes=2)
LARGE = ClientGrant(threads=50, memory_mib=8192, processes=1)


@pytest.fixture(scope="module")
def drivers() -> Iterator[dict[str, Path]]:
    with simulated_driver("615.71.09") as new, simulated_driver() as old:
        yield {"615": new, "580": old}


@contextmanager
def node_of(driver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("GPUSHARE_SIMULATION_DIR", str(driver))
    with tempfile.TemporaryDirectory(prefix="gs", dir="/tmp") as root:
        yield Node(driver, Path(root))


@pytest.fixture
def node(drivers: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with node_of(drivers["615"], monkeypatch) as node:
        yield node


@contextmanager
def supervised(
    node: Node, protocol: ProtocolSetting = ProtocolSetting.AUTO, programs: Path | None = None
) -> Iterator[None]:
    """Ends with its clients and daemons, as a pod."""
    supervisor = Supervisor(
        "inference",
        node.root,
        programs or bin_dir(),
        node.nvml,
        poll_seconds=0.2,
        reread_seconds=1.0,
        protocol=protocol,
        broker_uid=os.geteuid(),
    )
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield
    finally:
        for client in node.clients:
            client.kill()
            client.communicate()
        supervisor.end_when_idle()
        thread.join(SECONDS)
        assert not thread.is_alive()


def listing(directory: Path, clients: str) -> Path:
    """Programs of which the control program lists `clients`, a shell command that may run "$real" for the true list."""
    program = directory / "nvidia-cuda-mps-control"
    real = bin_dir() / program.name
    program.write_text(
        f'#!/bin/bash\nreal="{real} $*"\ncase "$*" in *"client list"*) {clients}; exit 0;; esac\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    return directory


class Containers:
    """Who is in which container, as the broker and the agent know it."""

    def __init__(self, gpu: GpuDir) -> None:
        self._gpu = gpu
        self._grants: dict[str, ClientGrant] = {}
        self.next = ""
        """The container of whoever connects from now on."""
        self._known: dict[int, str] = {}

    def grant(self, container: str, grant: ClientGrant) -> None:
        self._grants[container] = grant
        self._write()

    def enter(self, container: str, grant: ClientGrant) -> None:
        """Whoever connects from now on is in that container."""
        self.grant(container, grant)
        self.next = container

    def remove(self, container: str) -> None:
        del self._grants[container]
        self._write()

    def _write(self) -> None:
        pods = [
            GrantedPod(
                uid=f"uid-{name}",
                namespace="team",
                name=name,
                containers=[GrantedContainer(name="main", id=f"id-{name}", grant=grant)],
            )
            for name, grant in self._grants.items()
        ]
        write_model(self._gpu.grants, GpuGrants(uuid=self._gpu.uuid, share="inference", pods=pods), mode=0o644)

    def owners(self, pid: int) -> Sequence[Owner]:
        name = self._known.setdefault(pid, self.next)
        return (Owner(f"uid-{name}", f"id-{name}"),)


@contextmanager
def brokered(node: Node, gpu: GpuDir, containers: Containers | None = None) -> Iterator[Containers]:
    """A supervisor with an attach broker of its own."""
    gpu.attach.mkdir(exist_ok=True)
    gpu.broker.mkdir(exist_ok=True)
    containers, loop = containers or Containers(gpu), asyncio.new_event_loop()

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    task = loop.create_task(serve(node.root, BrokerSettings("inference", boot_clock, containers.owners)))
    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(gpu.attach_control.exists, lambda: read_model(gpu.broker_state, BrokerState))
        yield containers
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(SECONDS)
        loop.close()


def ready(node: Node, protocol: str) -> GpuDir:
    gpu = node.dirs[0]
    node.request(gpu)
    state = node.ready(gpu)
    assert state.protocol == protocol
    return gpu


def control(gpu: GpuDir) -> ControlProgramV3:
    return ControlProgramV3(bin_dir(), gpu.pipe, gpu.log)


def test_a_615_driver_under_auto_is_ready_with_v3(node: Node) -> None:
    with supervised(node):
        gpu = ready(node, "V3")
        state = node.state(gpu)
        assert (state.in_force, state.server_status) == (LIMITS, "ACTIVE")
        assert state.server_pid in {process.pid for process in node.nvml.processes(gpu.uuid).compute}
        assert set(control(gpu).namespaces()) == {DEFAULT_NAMESPACE}


@pytest.mark.parametrize(
    ("driver", "setting"), [("615", ProtocolSetting.V2), ("580", ProtocolSetting.AUTO), ("580", ProtocolSetting.V2)]
)
def test_v2_is_what_is_spoken_elsewhere_and_where_it_is_asked_for(
    drivers: dict[str, Path], monkeypatch: pytest.MonkeyPatch, driver: str, setting: ProtocolSetting
) -> None:
    with node_of(drivers[driver], monkeypatch) as node, supervised(node, setting):
        gpu = ready(node, "V2")
        assert not (gpu.pipe / SERVER).exists()
        assert not gpu.clients.exists()
        assert node.client(gpu)[1][0] == "66"


def test_containers_get_their_own_limits_at_the_same_time(node: Node) -> None:
    with supervised(node):
        gpu = ready(node, "V3")
        with brokered(node, gpu) as containers:
            containers.grant("small", SMALL)
            containers.grant("large", LARGE)
            containers.next = "small"
            _, (sms, free, under_mps) = node.client(gpu, gpu.attach, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100")
            assert (sms, under_mps) == ("32", "True")
            assert int(free) <= 4096
            containers.next = "large"
            _, (sms, free, _) = node.client(gpu, gpu.attach, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=100G")
            assert (sms, 4096 < int(free) <= 8192) == ("66", True)
            namespaces = control(gpu).namespaces()
            small = namespaces[namespace_name("uid-small", "main")]
            assert (small.threads, small.memory_mib) == (25, 4096)
            assert namespaces[DEFAULT_NAMESPACE].threads == LIMITS.threads, "nobody's turn changed the server"
            pids = sorted(client.pid for client in node.clients)
            until(
                lambda: read_model(gpu.clients, ServedClients).value == ServedClients(pids=pids),
                lambda: (pids, read_model(gpu.clients, ServedClients)),
            )


def test_no_container_gets_more_than_its_share_has(node: Node) -> None:
    with supervised(node):
        gpu = ready(node, "V3")
        with brokered(node, gpu) as containers:
            containers.enter("greedy", ClientGrant(threads=100, memory_mib=100_000, processes=1))
            _, (sms, free, _) = node.client(gpu, gpu.attach)
            assert sms == "66"
            assert int(free) <= LIMITS.memory_mib


def test_a_namespace_goes_with_its_container(node: Node) -> None:
    with supervised(node):
        gpu = ready(node, "V3")
        with brokered(node, gpu) as containers:
            containers.enter("first", SMALL)
            client, _ = node.client(gpu, gpu.attach)
            client.kill()
            client.wait()
            containers.remove("first")
            until(lambda: not control(gpu).clients(0), lambda: "its client is listed still")
            containers.enter("second", LARGE)
            assert node.client(gpu, gpu.attach)[1][0] == "66"
            second = namespace_name("uid-second", "main")
            assert set(control(gpu).namespaces()) == {DEFAULT_NAMESPACE, second}
            assert {entry.name for entry in gpu.client.iterdir()} == {
                "control",
                "share",
                "turns",
                "clients.json",
                second,
            }


def test_more_processes_than_granted_are_refused_by_a_new_broker_too(node: Node) -> None:
    with supervised(node):
        gpu = ready(node, "V3")
        containers = Containers(gpu)
        containers.enter("one", LARGE)
        with brokered(node, gpu, containers):
            first, (sms, *_) = node.client(gpu, gpu.attach)
            assert sms == "66"
            until(lambda: read_model(gpu.clients, ServedClients).value == ServedClients(pids=[first.pid]), lambda: sms)
        gpu.attach_control.unlink()
        with brokered(node, gpu, containers):
            assert node.client(gpu, gpu.attach)[1] == []


def test_a_daemon_keeps_protocol_and_clients_under_a_new_supervisor(node: Node) -> None:
    program = [sys.executable, "-m", "gpushare.cli.main", "mps-supervisor", "--share", "inference", "--simulation"]
    with subprocess.Popen([*program, "--root", str(node.root), "--mps-protocol", "Auto"]) as killed:
        try:
            gpu = ready(node, "V3")
            before = node.state(gpu)
            client, _ = node.client(gpu, gpu.pipe / SERVER / DEFAULT_NAMESPACE)
        finally:
            killed.kill()
    with supervised(node, ProtocolSetting.V2):
        after = node.until(gpu, lambda state: state.ready and state.heartbeat > before.heartbeat + 1)
        assert (after.protocol, after.server_pid, after.control_pid) == ("V3", before.server_pid, before.control_pid)
        assert client.poll() is None


def test_changed_limits_of_the_share_count_for_later_containers(node: Node) -> None:
    with supervised(node):
        gpu = ready(node, "V3")
        less = DaemonLimits(threads=20, memory_mib=4096)
        node.request(gpu, less)
        node.until(gpu, lambda state: state.ready and state.in_force == less)
        with brokered(node, gpu) as containers:
            containers.enter("large", LARGE)
            assert node.client(gpu, gpu.attach)[1][0] == "26"


def test_the_daemon_ends_when_it_is_asked_to_and_its_last_client_has_gone(node: Node) -> None:
    with supervised(node):
        gpu = ready(node, "V3")
        with brokered(node, gpu) as containers:
            containers.enter("small", SMALL)
            client, _ = node.client(gpu, gpu.attach)
            node.request(gpu, stop=True)
            node.until(gpu, lambda state: str(client.pid) in state.message)
            assert client.poll() is None
            client.kill()
            client.wait()
            node.until(gpu, lambda state: state.stopped)
            until(lambda: not any(gpu.pipe.iterdir()), lambda: list(gpu.pipe.iterdir()))


def test_a_client_that_the_daemon_lists_is_terminated_and_another_is_not(node: Node) -> None:
    with supervised(node):
        gpu = ready(node, "V3")
        with brokered(node, gpu) as containers:
            containers.enter("small", SMALL)
            client, _ = node.client(gpu, gpu.attach)
            commands = control(gpu)
            [server] = commands.sound_servers()
            assert commands.terminate_client(server, client.pid)
            assert not commands.terminate_client(server, os.getpid())


def test_a_daemon_that_lists_no_client_is_not_stopped_while_nvml_shows_one(node: Node, tmp_path: Path) -> None:
    with supervised(node, programs=listing(tmp_path, "true")):
        gpu = ready(node, "V3")
        client, _ = node.client(gpu, gpu.pipe / SERVER / DEFAULT_NAMESPACE)
        node.request(gpu, stop=True)
        node.until(gpu, lambda state: "has not listed its clients" in state.message)
        node.observe_again(gpu)
        assert client.poll() is None
        assert not node.state(gpu).stopped
        client.kill()
        client.wait()
        node.until(gpu, lambda state: state.stopped)


def test_a_row_that_a_client_wrote_into_the_list_counts_for_nothing(node: Node, tmp_path: Path) -> None:
    """The client writes the row by its command line, which may have line breaks. PID 1 is in another container, for
    one."""
    forged = f'out=$($real); [ -z "$out" ] || printf \'%s\\n1,{SERVER},0,default,forged\\n\' "$out"'
    with supervised(node, programs=listing(tmp_path, forged)):
        gpu = ready(node, "V3")
        client, _ = node.client(gpu, gpu.pipe / SERVER / DEFAULT_NAMESPACE)
        until(
            lambda: read_model(gpu.clients, ServedClients).value == ServedClients(pids=[client.pid]),
            lambda: read_model(gpu.clients, ServedClients),
        )
