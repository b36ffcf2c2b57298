"""The supervisor against the simulated driver and MPS executables: real processes, sockets and signals, no GPU."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.api.compute_mode import ComputeMode
from gpushare.api.conditions import DaemonReason
from gpushare.mps.control_socket import ControlSocket
from gpushare.mps.files import read_model
from gpushare.mps.supervisor.daemon_log import DaemonLog
from gpushare.mps.supervisor.daemon_process import DaemonProcess
from gpushare.mps.supervisor.supervisor import Supervisor
from gpushare.mps.supervisor.turns import TurnServer
from gpushare.mps.wire import ClientGrant, DaemonLimits, DaemonState, TurnAnswer, decode, encode
from gpushare.simulation import bin_dir
from tests.unit.few_files import no_descriptors
from tests.unit.few_threads import no_threads
from tests.unit.mps.supervisor.supervised_node import LIMITS, SECONDS, Node, simulated_driver, until
from tests.unit.small_disk import no_room, small_disk

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="-multiuser-server is for root alone")


@pytest.fixture(scope="module")
def driver() -> Iterator[Path]:
    """One simulated driver for all tests."""
    with simulated_driver() as directory:
        yield directory


@pytest.fixture
def node(driver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("GPUSHARE_SIMULATION_DIR", str(driver))
    with tempfile.TemporaryDirectory(prefix="gs", dir="/tmp") as root:
        node = Node(driver, Path(root))
        yield node
        for client in node.clients:
            client.kill()
            client.communicate()
        for gpu in node.dirs:
            state = read_model(gpu.state, DaemonState).value
            if state is not None and not state.stopped:
                _kill(state.control_pid)


@pytest.fixture
def small(node: Node) -> Iterator[None]:
    """The node's directory has little room. Asked for before `supervisor`, so that it ends later."""
    with small_disk(node.root):
        for gpu in node.dirs:
            gpu.client.mkdir(parents=True)
        yield


@pytest.fixture
def supervisor(node: Node) -> Iterator[Supervisor]:
    supervisor = Supervisor("inference", node.root, bin_dir(), node.nvml, poll_seconds=0.2, reread_seconds=1.0)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    yield supervisor
    for client in node.clients:
        client.kill()
    supervisor.end_when_idle()
    thread.join(SECONDS)
    assert not thread.is_alive()


def _kill(pid: int | None, number: signal.Signals = signal.SIGKILL) -> None:
    assert pid is not None
    os.kill(pid, number)


def test_a_desired_gpu_becomes_ready_and_limits_its_clients(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    state = node.ready(gpu)
    assert state.in_force == LIMITS
    assert state.server_pid in {process.pid for process in node.nvml.processes(gpu.uuid).compute}
    assert gpu.client_control.samefile(gpu.control)
    assert {entry.name for entry in gpu.client.iterdir()} == {"control", "share", "turns"}
    _, (sms, free, under_mps) = node.client(gpu)
    assert (sms, under_mps) == ("66", "True")
    assert 15000 < int(free) <= 16385


def test_changed_limits_reach_new_clients_without_a_restart(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    before = node.ready(gpu)
    old, _ = node.client(gpu)
    node.request(gpu, DaemonLimits(threads=20, memory_mib=4096))
    after = node.until(gpu, lambda state: state.ready and state.in_force == DaemonLimits(threads=20, memory_mib=4096))
    assert (after.control_pid, after.server_pid) == (before.control_pid, before.server_pid)
    _, (sms, free, _) = node.client(gpu)
    assert sms == "26"
    assert int(free) <= 4096
    assert old.poll() is None


def test_a_limit_that_somebody_removes_is_written_again(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    server = node.ready(gpu).server_pid
    assert server is not None
    control = node.control(gpu)
    assert control.run(f"set_device_pinned_mem_limit {server} 0 garbage") == ""
    assert control.server_memory_mib(server) is None
    until(lambda: control.server_memory_mib(server) is not None, lambda: "no limit")


def test_a_killed_server_is_replaced_at_once(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    before = node.ready(gpu)
    _kill(before.server_pid)
    after = node.until(gpu, lambda state: state.ready and state.server_pid != before.server_pid)
    assert (after.control_pid, after.restarts, after.servers_lost) == (before.control_pid, 0, 1)
    assert after.last_failure.startswith(f"MPS server {before.server_pid} ended")
    assert after.in_force == LIMITS


def test_a_killed_daemon_is_restarted_with_a_renewed_link(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    before = node.ready(gpu)
    inode = gpu.client_control.stat().st_ino
    _kill(before.control_pid)
    after = node.until(gpu, lambda state: state.ready and state.control_pid != before.control_pid)
    assert (after.restarts, after.servers_lost) == (1, 0)
    assert after.last_failure.startswith("the control daemon was ended by SIGKILL")
    assert gpu.client_control.samefile(gpu.control)
    assert gpu.client_control.stat().st_ino != inode or gpu.client_control.stat().st_nlink == 2
    _, (sms, _, under_mps) = node.client(gpu)
    assert (sms, under_mps) == ("66", "True")


def test_a_server_that_let_the_gpu_go_is_replaced(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    before = node.ready(gpu)
    client, _ = node.client(gpu)
    client.communicate("fault\n")
    after = node.until(gpu, lambda state: state.ready and state.server_pid != before.server_pid)
    assert after.server_pid in {process.pid for process in node.nvml.processes(gpu.uuid).compute}
    assert (after.faults, after.servers_lost) == (1, 0)


def test_clients_that_outlive_a_fault_keep_the_server(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    before = node.ready(gpu)
    idle, _ = node.client(gpu)
    culprit, _ = node.client(gpu)
    assert node.until(gpu, lambda state: state.contexts == 2).fault_since is None
    culprit.communicate("fault\n")
    faulted = node.until(gpu, lambda state: state.faulted_clients == [idle.pid])
    assert (faulted.reason, faulted.faults) == (DaemonReason.FAULTED, 1)
    assert faulted.fault_since is not None
    assert "a fatal fault has taken the CUDA contexts of all clients" in faulted.message
    assert "encountered a fatal" in faulted.last_fault
    node.observe_again(gpu)
    assert node.state(gpu).fault_since == faulted.fault_since
    idle.kill()
    after = node.until(gpu, lambda state: state.ready)
    assert after.server_pid != before.server_pid
    assert (after.faults, after.fault_since, after.faulted_clients) == (1, None, [])


def test_a_faulted_client_is_named_while_the_daemon_is_silent(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    node.ready(gpu)
    idle, _ = node.client(gpu)
    culprit, _ = node.client(gpu)
    node.until(gpu, lambda state: state.contexts == 2)
    culprit.communicate("fault\n")
    faulted = node.until(gpu, lambda state: state.faulted_clients == [idle.pid])
    _kill(faulted.server_pid, signal.SIGSTOP)
    try:
        unanswered = node.until(gpu, lambda state: state.reason is DaemonReason.CONTROL_TIMEOUT)
        assert (unanswered.fault_since, unanswered.faulted_clients) == (faulted.fault_since, [idle.pid])
    finally:
        _kill(faulted.server_pid, signal.SIGCONT)
    idle.kill()
    assert node.ready(gpu).faulted_clients == []


def test_stopping_waits_for_the_last_client(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    node.ready(gpu)
    client, _ = node.client(gpu)
    node.request(gpu, stop=True)
    waiting = node.until(gpu, lambda state: str(client.pid) in state.message)
    assert waiting.reason is DaemonReason.STOPPING
    assert not waiting.stopped
    assert not gpu.client_control.exists()
    node.observe_again(gpu)
    assert client.poll() is None
    client.communicate("")
    stopped = node.until(gpu, lambda state: state.stopped)
    assert stopped.control_pid is None
    # The directory is cleaned after the end was reported.
    until(lambda: not any(gpu.pipe.iterdir()), lambda: list(gpu.pipe.iterdir()))


def test_a_gpu_that_is_desired_again_is_served_again(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    node.ready(gpu)
    gpu.wanted.unlink()
    node.until(gpu, lambda state: state.stopped)
    node.request(gpu)
    node.ready(gpu)
    node.request(gpu, stop=True)
    node.until(gpu, lambda state: state.stopped)
    node.request(gpu)
    state = node.ready(gpu)
    assert (state.in_force, state.restarts) == (LIMITS, 0)


def test_a_wedged_server_is_reported_and_delays_no_other_gpu(node: Node, supervisor: Supervisor) -> None:
    wedged, other = node.dirs
    node.request(wedged)
    server = node.ready(wedged).server_pid
    _kill(server, signal.SIGSTOP)
    try:
        node.until(wedged, lambda state: state.reason is DaemonReason.CONTROL_TIMEOUT)
        node.request(other)
        node.ready(other)
        assert node.state(wedged).reason is DaemonReason.CONTROL_TIMEOUT
    finally:
        _kill(server, signal.SIGCONT)
    assert node.ready(wedged).server_pid == server


def test_a_process_without_mps_that_holds_the_gpu_is_named(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    holder, (_, _, under_mps) = node.client(gpu)
    assert under_mps == "False"
    node.request(gpu)
    state = node.until(gpu, lambda state: state.reason is DaemonReason.GPU_HELD_BY_FOREIGN_PROCESS)
    assert f"PID {holder.pid}" in state.message
    holder.communicate("")
    node.ready(gpu)


def test_a_client_that_outlives_its_daemon_and_keeps_the_gpu_is_named(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    before = node.ready(gpu)
    lingering, _ = node.client(gpu)
    node.nvml.set_compute_mode(gpu.uuid, ComputeMode.EXCLUSIVE_PROCESS)
    try:
        _kill(before.control_pid)
        state = node.until(gpu, lambda state: "that has ended are still on the GPU" in state.message)
        assert (state.reason, f"PID {lingering.pid}" in state.message) == (DaemonReason.SERVER_NOT_ACTIVE, True)
        lingering.kill()
        node.ready(gpu)
    finally:
        node.nvml.set_compute_mode(gpu.uuid, ComputeMode.DEFAULT)


def test_a_request_to_end_takes_no_lock_of_the_interrupted_code(tmp_path: Path) -> None:
    """SIGTERM may come at any moment of the loop: with a lock, the supervisor would stand still for ever."""
    supervisor = Supervisor("inference", tmp_path, None, None)  # type: ignore[arg-type]
    left = threading.Thread(target=supervisor.end_when_idle, daemon=True)
    with supervisor._leaving._cond:  # type: ignore[attr-defined]  # noqa: SLF001
        left.start()
        left.join(5)
        assert not left.is_alive()
    supervisor.run()


def test_gpus_of_other_shares_are_left_alone(node: Node, supervisor: Supervisor) -> None:
    mine, others = node.dirs
    node.request(others, share="training")
    node.request(mine)
    node.ready(mine)
    assert not others.state.exists()
    assert not others.pipe.exists()


def test_a_gpu_moves_to_another_share_only_when_the_first_has_let_it_go(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    node.ready(gpu)
    client, _ = node.client(gpu)
    second = Supervisor("training", node.root, bin_dir(), node.nvml, poll_seconds=0.2)
    thread = threading.Thread(target=second.run)
    thread.start()
    try:
        node.request(gpu, share="training")
        node.until(gpu, lambda state: str(client.pid) in state.message)
        node.observe_again(gpu)
        assert node.state(gpu).share == "inference"
        client.communicate("")
        state = node.until(gpu, lambda state: state.ready and state.share == "training")
        assert state.in_force == LIMITS
    finally:
        second.end_when_idle()
        thread.join(SECONDS)


def test_a_daemon_of_an_earlier_supervisor_is_taken_over_with_its_clients(node: Node) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    command = [sys.executable, "-m", "gpushare.cli.main", "mps-supervisor", "--simulation", "--share", "inference"]
    first = subprocess.Popen([*command, "--root", str(node.root)])
    before = node.ready(gpu)
    client, _ = node.client(gpu)
    first.kill()
    first.wait()
    second = subprocess.Popen([*command, "--root", str(node.root)])
    after = node.until(gpu, lambda state: state.ready and state.heartbeat > before.heartbeat + 2)
    assert (after.control_pid, after.server_pid) == (before.control_pid, before.server_pid)
    second.terminate()
    node.until(gpu, lambda state: str(client.pid) in state.message)
    assert second.poll() is None, "SIGTERM waits for the clients"
    assert not gpu.client_control.exists()
    client.communicate("")
    assert second.wait(SECONDS) == 0
    assert node.state(gpu).stopped


def test_a_daemon_that_ended_with_its_supervisor_counts_once(node: Node) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    command = [sys.executable, "-m", "gpushare.cli.main", "mps-supervisor", "--simulation", "--share", "inference"]

    def killed(since: float, supervisor: "subprocess.Popen[bytes]", contexts: int) -> DaemonState:
        """Kills all of the supervisor at once, as the kubelet ends a container."""
        state = node.until(gpu, lambda state: state.ready and state.heartbeat > since and state.contexts == contexts)
        for pid in (supervisor.pid, state.control_pid, state.server_pid):
            _kill(pid)
        supervisor.wait()
        return state

    first = subprocess.Popen([*command, "--root", str(node.root)])
    node.ready(gpu)
    clients = [node.client(gpu)[0] for _ in range(2)]
    before = killed(0.0, first, contexts=2)
    for client in clients:
        client.kill()
    second = subprocess.Popen([*command, "--root", str(node.root)])
    after = node.until(gpu, lambda state: state.ready and state.heartbeat > before.heartbeat)
    assert (before.restarts, after.restarts, after.lost_contexts) == (0, 1, 2)
    assert after.last_failure.startswith("the control daemon ended with its container")
    before = killed(after.heartbeat, second, contexts=0)
    third = subprocess.Popen([*command, "--root", str(node.root)])
    after = node.until(gpu, lambda state: state.ready and state.heartbeat > before.heartbeat)
    assert (after.restarts, after.lost_contexts, after.servers_lost) == (2, 2, 0)
    third.terminate()
    assert third.wait(SECONDS) == 0
    fourth = subprocess.Popen([*command, "--root", str(node.root)])
    after = node.until(gpu, lambda state: state.ready and state.heartbeat > after.heartbeat)
    assert (after.restarts, after.last_failure) == (0, ""), "the third had ended its daemon in order"
    fourth.terminate()
    assert fourth.wait(SECONDS) == 0


def test_a_missing_program_is_reported_and_tried_again_ever_more_slowly(node: Node, tmp_path: Path) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    supervisor = Supervisor("inference", node.root, tmp_path, node.nvml, poll_seconds=0.2)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    state = node.until(gpu, lambda state: "again in 2 s" in state.message)
    supervisor.end_when_idle()
    thread.join(SECONDS)
    assert state.reason is DaemonReason.DAEMON_FAILED
    assert "nvidia-cuda-mps-control cannot be started: No such file or directory" in state.message


def test_a_full_disk_ends_no_client_and_is_reported_later(node: Node, small: None, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    before = node.ready(gpu)
    client, _ = node.client(gpu)
    with no_room(node.root):
        heartbeat = node.state(gpu).heartbeat
        time.sleep(1.0)
        assert node.state(gpu).heartbeat == heartbeat, "nothing can be written"
        assert node.client(gpu)[1][2] == "True", "clients start and go on"
        assert client.poll() is None
    after = node.until(gpu, lambda state: state.heartbeat > heartbeat)
    assert (after.ready, after.control_pid, after.server_pid) == (True, before.control_pid, before.server_pid)


def test_a_supervisor_without_descriptors_ends_nothing(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    before = node.ready(gpu)
    client, _ = node.client(gpu)
    with no_descriptors():
        time.sleep(1.5)
    heartbeat = node.state(gpu).heartbeat
    after = node.until(gpu, lambda state: state.ready and state.heartbeat > heartbeat)
    assert (after.control_pid, after.server_pid) == (before.control_pid, before.server_pid)
    assert (after.restarts, after.servers_lost) == (0, 0)
    assert client.poll() is None
    node.request(node.dirs[1])
    node.ready(node.dirs[1])  # it looks for GPUs still


def test_a_gpu_waits_for_a_thread_and_ends_no_other(node: Node, supervisor: Supervisor) -> None:
    gpu, other = node.dirs
    node.request(gpu)
    before = node.ready(gpu)
    client, _ = node.client(gpu)
    with no_threads():
        node.request(other)
        node.observe_again(gpu, times=5)
        assert not other.state.exists()
    node.ready(other)
    assert node.client(other)[1][2] == "True"
    after = node.state(gpu)
    assert (after.ready, after.control_pid, after.server_pid) == (True, before.control_pid, before.server_pid)
    assert client.poll() is None


def test_an_attach_gets_its_turn_once_there_is_a_thread(node: Node) -> None:
    gpu = node.dirs[0]
    lock = threading.Lock()
    turns = TurnServer(gpu, ControlSocket(gpu.control, 1.0), lambda: "not now", lock, os.geteuid())
    with no_threads(), pytest.raises(BlockingIOError):
        turns.start()
    turns.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as broker:
        broker.settimeout(SECONDS)
        broker.connect(str(gpu.turns))
        broker.send(encode(ClientGrant(threads=10, memory_mib=1024, processes=1)))
        assert decode(broker.recv(1024), TurnAnswer).wait == "not now"
    turns.end()


def test_a_daemon_stays_known_without_descriptors(node: Node) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    first = Supervisor("inference", node.root, bin_dir(), node.nvml, poll_seconds=0.2)
    running = threading.Thread(target=first.run, daemon=True)
    running.start()
    before = node.ready(gpu)
    process = DaemonProcess(gpu, bin_dir(), DaemonLog(gpu.log), lambda: None)
    assert process.adopt() == before.control_pid
    with no_descriptors():
        for look in (lambda: process.pid, process.adopt):
            with pytest.raises(OSError, match="Too many open files"):
                look()
    assert process.pid == before.control_pid
    first.end_when_idle()
    running.join(10)


def test_a_server_is_replaced_though_its_log_cannot_be_read(node: Node, supervisor: Supervisor) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    before = node.ready(gpu)
    (gpu.log / "another.log").symlink_to("nowhere")
    with pytest.raises(OSError, match="another"):
        DaemonLog(gpu.log).rotate()
    log = gpu.log / "control.log"
    log.unlink()
    log.mkdir()
    _kill(before.server_pid)
    node.until(gpu, lambda state: state.ready and state.server_pid != before.server_pid)


def test_a_server_that_ends_on_a_full_disk_is_replaced_all_the_same(
    node: Node, small: None, supervisor: Supervisor
) -> None:
    gpu = node.dirs[0]
    node.request(gpu)
    before = node.ready(gpu)
    with no_room(node.root):
        _kill(before.server_pid)
        control = node.control(gpu)

        def replaced() -> bool:
            return bool(set(control.server_list()) - {before.server_pid})

        until(replaced, control.server_list)
    node.until(gpu, lambda state: state.ready and state.server_pid != before.server_pid)
