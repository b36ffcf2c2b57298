"""Which clients end together, and the state of the server afterwards."""

import signal
import subprocess
import time

import pytest

from gpushare.api.compute_mode import ComputeMode
from tests.contract.conftest import SECONDS

UNAVAILABLE, ILLEGAL, ASSERT, LAUNCH_FAILURE = 46, 700, 710, 719
CONNECTION_FAILED, RPC_FAILURE, NOT_READY, TERMINATED = 805, 806, 807, 810
LONG, ENDLESS = 1500, 1500 * SECONDS
SETTLE = 0.3
ARRIVAL = 4.0
"""Long enough for a command that hangs to reach the daemon, even if its program starts slowly."""


def test_an_illegal_address_ends_all_clients_and_the_server_goes_on_then(machine):
    culprit, neighbour = machine.client(), machine.client()
    server = machine.server()
    neighbour(f"launch {LONG}")
    assert culprit("fault illegal_address") == {"error": ILLEGAL}
    assert neighbour("sync") == {"error": ILLEGAL}
    assert neighbour("info") == {"error": ILLEGAL}
    assert machine.ask(f"get_server_status {server}") == "FAULT"
    assert set(machine.ask(f"get_client_list {server}").split()) == {str(culprit.pid), str(neighbour.pid)}
    assert len(machine.nvml.processes(machine.gpu.uuid).mps_clients) == 2
    assert machine.program()("create") == {"error": NOT_READY}
    culprit.kill()
    assert machine.ask(f"get_server_status {server}") == "FAULT"
    neighbour.kill()
    machine.until(lambda: machine.ask(f"get_server_status {server}") == "ACTIVE")
    assert machine.client()("sync") == {}


def test_terminate_client_after_a_fatal_fault_hangs_daemon_and_server(machine):
    culprit, neighbour = machine.client(), machine.client()
    server = machine.server()
    culprit("fault illegal_address")
    assert machine.ask(f"get_server_status {server}") == "FAULT"
    with pytest.raises(subprocess.TimeoutExpired):
        machine.control(f"terminate_client {server} {neighbour.pid}", seconds=ARRIVAL)
    with pytest.raises(subprocess.TimeoutExpired):
        machine.control("get_server_list", seconds=0.4)
    culprit.kill()
    neighbour.kill()
    machine.until(lambda: not machine.nvml.processes(machine.gpu.uuid).mps_clients)
    time.sleep(SETTLE)
    assert machine.ask(f"get_server_status {server}") == "FAULT"
    assert machine.program()("create") == {"error": NOT_READY}


def test_a_trap_ends_every_client_with_a_launch_failure(machine):
    culprit, neighbour = machine.client(), machine.client()
    assert culprit("fault trap") == {"error": LAUNCH_FAILURE}
    time.sleep(SETTLE)
    assert neighbour("sync") == {"error": LAUNCH_FAILURE}


def test_an_assert_ends_its_own_program_alone(machine):
    culprit, neighbour = machine.client(), machine.client()
    neighbour("launch 200")
    assert culprit("fault assert") == {"error": ASSERT}
    assert neighbour("sync") == {}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_killed_in_mid_kernel_takes_its_neighbours_along(machine, number):
    """Measured: at the first to third kill."""
    neighbours = [machine.client() for _ in range(3)]
    for _ in range(1 if machine.simulated else 6):
        victim = machine.client()
        victim(f"launch {ENDLESS}")
        time.sleep(0.05)
        victim.kill(number)
        time.sleep(SETTLE)
        if neighbours[0]("sync"):
            break
    assert [neighbour("sync") for neighbour in neighbours] == [{"error": ILLEGAL}] * 3


def test_a_normal_exit_in_mid_kernel_ends_the_neighbours_like_a_kill(machine):
    neighbour, leaving = machine.client(), machine.client()
    leaving(f"launch {ENDLESS}")
    leaving.send("exit")
    leaving.process.wait(SECONDS)
    time.sleep(SETTLE)
    assert neighbour("sync") == {"error": ILLEGAL}


def test_a_context_destroyed_in_mid_kernel_waits_for_it_and_hurts_nobody(machine):
    neighbour, leaving = machine.client(), machine.client()
    neighbour("launch 300")
    started = time.monotonic()
    leaving("launch 500")
    assert leaving("close") == {}
    assert time.monotonic() - started >= 0.5
    leaving.kill()
    assert neighbour("sync") == {}


def test_a_lone_death_in_mid_kernel_poisons_the_server_for_its_next_client(machine):
    server, victim = machine.server(), machine.client()
    victim(f"launch {ENDLESS}")
    time.sleep(0.05)
    victim.kill()
    time.sleep(SETTLE)
    assert machine.ask(f"get_server_status {server}") == "ACTIVE"
    assert [process.pid for process in machine.nvml.processes(machine.gpu.uuid).compute] == [server]
    next_one = machine.program()
    assert next_one("create") == {"error": LAUNCH_FAILURE}
    next_one.kill()
    machine.until(lambda: not machine.nvml.processes(machine.gpu.uuid).compute)
    assert machine.client()("sync") == {}


def test_a_terminated_client_is_listed_and_a_second_terminate_hangs(machine):
    client, server = machine.client(), machine.server()
    assert machine.ask(f"terminate_client {server} {client.pid}") == "0"
    assert machine.ask(f"get_client_list {server}") == str(client.pid)
    assert [process.pid for process in machine.nvml.processes(machine.gpu.uuid).mps_clients] == [client.pid]
    with pytest.raises(subprocess.TimeoutExpired):
        machine.control(f"terminate_client {server} {client.pid}", seconds=ARRIVAL)
    with pytest.raises(subprocess.TimeoutExpired):
        machine.control("get_server_list", seconds=0.4)
    client.kill()
    machine.until(lambda: machine.ask(f"get_client_list {server}") == "")


@pytest.mark.parametrize("milliseconds", [0, 4])
def test_a_client_killed_with_less_than_6_ms_of_kernel_left_hurts_nobody(machine, milliseconds):
    neighbour, victim = machine.client(), machine.client()
    neighbour("launch 500")
    if milliseconds:
        victim(f"launch {milliseconds}")
    victim.kill()
    assert neighbour("sync") == {}


def test_a_client_terminated_by_the_daemon_gets_810_and_can_be_killed(machine):
    neighbour, victim = machine.client(), machine.client()
    neighbour(f"launch {LONG}")
    victim(f"launch {ENDLESS}")
    victim.send("sync")
    assert machine.ask(f"terminate_client {machine.server()} {victim.pid}") == "0"
    # The answer comes within SECONDS: the kernel was not waited for.
    assert victim.answer() == {"error": TERMINATED}
    assert victim("launch 1") == {"error": TERMINATED}
    victim.kill()
    assert neighbour("sync") == {}


def test_a_client_stopped_in_mid_kernel_hurts_nobody(machine):
    neighbour, victim = machine.client(), machine.client()
    victim("launch 100")
    victim.process.send_signal(signal.SIGSTOP)
    neighbour("launch 300")
    assert neighbour("sync") == {}
    victim.process.send_signal(signal.SIGCONT)
    assert victim("sync") == {}


def test_a_client_refused_for_memory_hurts_nobody(machine):
    neighbour = machine.client()
    neighbour("launch 300")
    assert machine.client()(f"alloc {1 << 42}") == {"error": 2}
    assert neighbour("sync") == {}


def test_a_killed_server_ends_its_clients_and_the_next_starts_another(machine):
    client, server = machine.client(), machine.server()
    client(f"launch {ENDLESS}")
    subprocess.run(["kill", "-KILL", str(server)], check=True)
    assert client("sync") == {"error": RPC_FAILURE}
    assert machine.client()("sync") == {}
    assert machine.ask("get_server_list") != str(server)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_daemons_death_ends_clients_and_later_ones_run_without_mps(machine, number):
    client = machine.client()
    client(f"launch {ENDLESS}")
    machine.daemon.send_signal(number)
    machine.daemon.wait(SECONDS)
    assert client("sync") == {"error": RPC_FAILURE}
    machine.until(lambda: machine.control("get_server_list").returncode == 1)
    later = machine.program(CUDA_VISIBLE_DEVICES=machine.gpu.uuid)
    assert "error" not in later("create")
    assert later.pid in {process.pid for process in machine.nvml.processes(machine.gpu.uuid).compute}
    later("close")
    machine.start_daemon("-multiuser-server")
    assert machine.client()("sync") == {}


def test_quit_waits_for_the_last_client(machine):
    client = machine.client()
    machine_quit = subprocess.Popen(
        ["sh", "-c", f"echo quit | {machine.executable}"],
        env={**machine.environ, "CUDA_MPS_PIPE_DIRECTORY": str(machine.pipe)},
    )
    time.sleep(0.7)
    assert machine.daemon.poll() is None
    assert client("sync") == {}
    client("close")
    client.kill()
    assert machine.daemon.wait(SECONDS) == 0
    assert machine_quit.wait(SECONDS) == 0


def test_quit_with_a_time_ends_the_clients_after_it(machine):
    client = machine.client()
    started = time.monotonic()
    machine.control("quit -t 1")
    machine.daemon.wait(SECONDS)
    assert time.monotonic() - started >= 0.9
    assert client("sync") == {"error": RPC_FAILURE}


def test_a_stopped_server_hangs_every_question_and_its_clients_go_on(machine):
    client, server = machine.client(), machine.server()
    subprocess.run(["kill", "-STOP", str(server)], check=True)
    assert machine.ask("get_server_list") == str(server)
    with pytest.raises(subprocess.TimeoutExpired):
        machine.control(f"get_server_status {server}", seconds=ARRIVAL)
    for command in ("get_server_list", "get_default_active_thread_percentage"):
        with pytest.raises(subprocess.TimeoutExpired):
            machine.control(command, seconds=0.4)
    assert client("sync") == {}
    subprocess.run(["kill", "-KILL", str(server)], check=True)
    machine.until(lambda: machine.ask("get_server_list") == "")


@pytest.fixture
def let_go(machine):
    """A machine after a fatal fault that left no client, and its server."""
    machine.nvml.set_compute_mode(machine.gpu.uuid, ComputeMode.EXCLUSIVE_PROCESS)
    culprit = machine.client()
    assert culprit("fault illegal_address") == {"error": ILLEGAL}
    culprit.kill()
    machine.until(lambda: not machine.nvml.processes(machine.gpu.uuid).compute)
    return machine


@pytest.mark.sets_compute_mode
def test_a_server_after_a_fault_without_survivors_is_active_and_empty(let_go):
    server = let_go.server()
    assert let_go.ask(f"get_server_status {server}") == "ACTIVE"
    let_go.control("start_server -uid 0")
    assert not let_go.nvml.processes(let_go.gpu.uuid).compute
    assert "error" not in let_go.non_mps()("create")


@pytest.mark.sets_compute_mode
def test_the_next_client_makes_the_server_take_hold_again(let_go):
    server = let_go.server()
    assert let_go.client()("sync") == {}
    assert [process.pid for process in let_go.nvml.processes(let_go.gpu.uuid).compute] == [server]
    assert let_go.non_mps()("create") == {"error": UNAVAILABLE}


@pytest.mark.sets_compute_mode
def test_a_killed_idle_server_started_again_takes_hold(let_go):
    old = let_go.server()
    subprocess.run(["kill", "-KILL", str(old)], check=True)
    let_go.until(lambda: let_go.ask("get_server_list") != str(old))
    new = let_go.server()
    assert [process.pid for process in let_go.nvml.processes(let_go.gpu.uuid).compute] == [new]


@pytest.mark.sets_compute_mode
def test_an_exclusive_gpu_held_by_a_server_refuses_a_non_mps_process(machine):
    machine.nvml.set_compute_mode(machine.gpu.uuid, ComputeMode.EXCLUSIVE_PROCESS)
    assert machine.non_mps()("create") == {"error": UNAVAILABLE}
    assert machine.client()("sync") == {}


@pytest.mark.sets_compute_mode
def test_an_exclusive_gpu_without_a_server_goes_to_a_non_mps_process(idle):
    idle.nvml.set_compute_mode(idle.gpu.uuid, ComputeMode.EXCLUSIVE_PROCESS)
    non_mps = idle.non_mps()
    assert "error" not in non_mps("create")
    idle.start_daemon("-multiuser-server")
    assert idle.ask("start_server -uid 0", "get_server_list") == ""
    assert "Failed to start : CUDA-capable device(s) is/are busy or unavailable" in idle.daemon_log.read_text()
    assert idle.program()("create") == {"error": CONNECTION_FAILED}
    assert [process.pid for process in idle.nvml.processes(idle.gpu.uuid).compute] == [non_mps.pid]


@pytest.mark.sets_compute_mode
def test_a_prohibited_gpu_refuses_everybody(idle):
    idle.nvml.set_compute_mode(idle.gpu.uuid, ComputeMode.PROHIBITED)
    assert "error" in idle.non_mps()("create")
    idle.start_daemon("-multiuser-server")
    assert idle.ask("start_server -uid 0", "get_server_list") == ""
