"""What both protocols promise: the seam that supervisor and agent use, with a daemon of v2 and with one of v3.

On hardware v3 is tried where the driver has it; until that has happened, its half holds for the stand-in alone.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import simulation
from gpushare.mps.control import ControlProgram, DaemonControl
from gpushare.mps.control_v3 import DEFAULT_NAMESPACE, SERVER, ControlProgramV3
from gpushare.mps.protocol import MpsProtocol, ProtocolSetting, choose, read_help
from tests.contract.conftest import REAL, SECONDS, Machine, simulated_parts

DRIVER = "615.71.09"
ENDED_BY_TERMINATE, SERVER_GONE = 810, 806
DAEMONS = {MpsProtocol.V2: ("-f", "-multiuser-server"), MpsProtocol.V3: ("-p", "3", "-f", "-m")}


class Daemon:
    """A daemon of `protocol`, its typed control, and where a client of its server connects."""

    def __init__(self, machine: Machine, protocol: MpsProtocol) -> None:
        programs = Path(shutil.which("nvidia-cuda-mps-control") or "/").parent if REAL else simulation.bin_dir()
        control = {MpsProtocol.V2: ControlProgram, MpsProtocol.V3: ControlProgramV3}[protocol]
        self.machine = machine
        self.control: DaemonControl = control(programs, machine.pipe, machine.log, SECONDS)
        self.clients = machine.pipe if protocol is MpsProtocol.V2 else machine.pipe / SERVER / DEFAULT_NAMESPACE
        machine.pipe.mkdir(exist_ok=True)
        environ = {
            **machine.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(machine.pipe),
            "CUDA_VISIBLE_DEVICES": machine.gpu.uuid,
        }
        with machine.daemon_log.open("a") as log:
            argv = [machine.executable, *DAEMONS[protocol]]
            machine.daemon = subprocess.Popen(argv, env=environ, stdout=log, stderr=log, text=True)
        machine.until(lambda: (machine.pipe / "control").is_socket())
        self.control.start_server()
        machine.until(lambda: self.statuses() == {"ACTIVE"})
        [self.server] = self.control.server_list()

    def statuses(self) -> set[str]:
        return set(self.control.survey(None)[0].values())

    def client(self, **environ: str):
        program = self.machine.program(pipe=self.clients, **environ)
        return program, program("create")


@pytest.fixture(scope="module")
def v3_parts(parts) -> Iterator[tuple]:
    if REAL:
        choice = choose(ProtocolSetting.AUTO, 0, parts[1].driver_version, lambda: read_help(None, Path("/"), Path("/")))
        if choice.protocol is not MpsProtocol.V3:
            pytest.skip(choice.why)
        yield parts
    else:
        yield from simulated_parts(DRIVER)


@pytest.fixture(params=list(MpsProtocol))
def daemon(request, parts, monkeypatch) -> Iterator[Daemon]:
    chosen = request.getfixturevalue("v3_parts") if request.param is MpsProtocol.V3 else parts
    for name, value in chosen[0].items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="mps-", dir="/tmp") as directory:
        machine = Machine(Path(directory), *chosen)
        yield Daemon(machine, request.param)
        machine.clean_up()


@pytest.fixture
def v3(v3_parts, monkeypatch) -> Iterator[Daemon]:
    for name, value in v3_parts[0].items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="mps-", dir="/tmp") as directory:
        machine = Machine(Path(directory), *v3_parts)
        yield Daemon(machine, MpsProtocol.V3)
        machine.clean_up()


def test_a_server_that_was_asked_for_is_active_listed_and_on_the_gpu(daemon: Daemon):
    assert daemon.control.survey(daemon.server) == ({daemon.server: "ACTIVE"}, {})
    assert daemon.control.sound_servers() == [daemon.server]
    nvml = daemon.machine.nvml
    daemon.machine.until(
        lambda: daemon.server in {process.pid for process in nvml.processes(daemon.machine.gpu.uuid).compute}
    )


def test_limits_that_were_written_are_read_back_and_bind_a_client(daemon: Daemon):
    daemon.control.write_server_limits(daemon.server, 25, 4096)
    assert daemon.control.server_limits(daemon.server) == (25.0, 4096)
    asks = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=100G"}
    client, created = daemon.client(**asks)
    assert created["sms"] == 32
    assert client("info")["free"] <= 4096 << 20


def test_a_client_is_listed_and_terminating_it_leaves_its_neighbour_alone(daemon: Daemon):
    victim, _ = daemon.client()
    neighbour, _ = daemon.client()
    assert sorted(daemon.control.clients(daemon.server)) == sorted([victim.pid, neighbour.pid])
    assert daemon.control.terminate_client(daemon.server, victim.pid)
    assert victim("sync") == {"error": ENDED_BY_TERMINATE}
    assert neighbour("sync") == {}


def test_a_process_that_is_no_client_is_not_terminated(daemon: Daemon):
    assert not daemon.control.terminate_client(daemon.server, os.getpid())


def test_the_end_of_the_server_ends_its_clients(daemon: Daemon):
    client, _ = daemon.client()
    os.kill(daemon.server, 9)
    daemon.machine.until(lambda: daemon.server not in daemon.control.server_list())
    assert client("sync") == {"error": SERVER_GONE}


def test_a_daemon_without_clients_quits(daemon: Daemon):
    daemon.control.quit()
    assert daemon.machine.daemon is not None
    daemon.machine.daemon.wait(SECONDS)


# What NVIDIA documents of v3 alone


def namespace(daemon: Daemon, name: str, threads: int, memory_mib: int) -> Path:
    control = daemon.control
    assert isinstance(control, ControlProgramV3)
    control.create_namespace(name)
    control.set_namespace(name, threads, memory_mib)
    return control.namespaces()[name].pipe


def created_in(daemon: Daemon, pipe: Path, **environ: str):
    client = daemon.machine.program(pipe=pipe, **environ)
    return client, client("create")


def test_a_namespace_has_a_directory_whose_clients_get_its_limits(v3: Daemon):
    small = namespace(v3, "small", 25, 4096)
    large = namespace(v3, "large", 50, 8192)
    assert small == v3.machine.pipe / SERVER / "small"
    first, of_first = created_in(v3, small)
    second, of_second = created_in(v3, large)
    assert (of_first["sms"], of_second["sms"]) == (32, 66)
    assert first("info")["free"] <= 4096 << 20 < second("info")["free"] <= 8192 << 20


def test_a_namespace_may_give_more_than_the_servers_default(v3: Daemon):
    """NVIDIA's guide for Dynamo; so a supervisor has to see to the ceiling itself."""
    v3.control.write_server_limits(v3.server, 25, 4096)
    assert created_in(v3, namespace(v3, "more", 75, 20480))[1]["sms"] == 98


def test_a_namespaces_percentage_counts_and_not_the_clients_own(v3: Daemon):
    pipe = namespace(v3, "fixed", 25, 4096)
    assert created_in(v3, pipe, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100")[1]["sms"] == 32


def test_a_client_may_lower_its_memory_limit_or_lose_it_by_an_unseen_gpu(v3: Daemon):
    variable, pipe = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", namespace(v3, "memory", 50, 8192)
    lower, _ = created_in(v3, pipe, **{variable: "0=2G"})
    assert lower("info")["free"] <= 2 << 30
    lost, _ = created_in(v3, pipe, **{variable: "0=2G,1=4G"})
    assert lost("info")["free"] > 8192 << 20


def test_an_empty_namespace_can_be_deleted_and_its_directory_goes(v3: Daemon):
    pipe = namespace(v3, "passing", 25, 4096)
    v3.control.delete_namespace("passing")
    assert "passing" not in v3.control.namespaces()
    assert not pipe.exists()


def test_any_later_run_of_the_control_program_follows_the_daemons_protocol(v3: Daemon):
    """The program runs without -p and without the variable."""
    answer = v3.machine.control_program("server", "get", SERVER, "pid")
    assert answer.stdout.strip() == str(v3.server)
