"""The output and the exit code of the control program."""

import os
import re
import signal
import stat

import pytest

from tests.contract.conftest import SECONDS

USER = 65534
REFUSAL = "Control deamon settings can only be modified by the user who started it or by the root user."
CHANGING = [
    "set_default_active_thread_percentage 50",
    "set_default_device_pinned_mem_limit 0 1G",
]


def _clients_directory(machine):
    """A directory as in a client's container: with a hard link to the one socket."""
    directory = machine.directory / "client"
    directory.mkdir()
    (directory / "control").hardlink_to(machine.pipe / "control")
    return directory


def test_without_a_daemon_it_says_so_and_exits_with_1(idle):
    result = idle.control("get_server_list")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "Cannot find MPS control daemon process\n"


def test_the_daemon_in_the_background_returns_with_its_sockets_there(idle):
    result = idle.control_program("-d", "-multiuser-server", CUDA_VISIBLE_DEVICES=idle.gpu.uuid)
    assert result.returncode == 0
    assert {entry.name for entry in idle.pipe.iterdir()} >= {"control", "control_privileged", "control_lock"}
    idle.until(lambda: (idle.pipe / "nvidia-cuda-mps-control.pid").exists())
    assert stat.filemode((idle.pipe / "control").stat().st_mode) == "srw-rw-rw-"
    assert stat.filemode((idle.pipe / "control_privileged").stat().st_mode) == "srwxr-xr-x"
    assert stat.S_ISFIFO((idle.pipe / "log").stat().st_mode)
    idle.control("quit")
    idle.until(lambda: idle.control("get_server_list").returncode == 1)


@pytest.mark.parametrize("command", ["nonsense", "lspart", "sm_partition", "get_server"])
def test_an_unknown_command_is_named_with_exit_code_0(machine, command):
    result = machine.control(command)
    assert (result.returncode, result.stdout) == (0, f'Unknown command "{command}"\n')


def test_commands_of_one_input_are_answered_in_order(machine):
    commands = ("get_default_active_thread_percentage", "lspart", "set_default_active_thread_percentage 20")
    assert machine.control(*commands).stdout == '100.0\nUnknown command "lspart"\n20.0\n'


@pytest.mark.parametrize("value", ["0", "-1", "101", "abc"])
def test_a_percentage_outside_its_range_prints_the_old_one(machine, value):
    machine.control("set_default_active_thread_percentage 40")
    result = machine.control(f"set_default_active_thread_percentage {value}", "get_default_active_thread_percentage")
    assert (result.returncode, result.stdout) == (0, "40.0\n40.0\n")


def test_the_status_of_a_server_is_active_and_of_another_number_not_found(machine):
    server = machine.server()
    assert machine.ask(f"get_server_status {server}") == "ACTIVE"
    assert machine.ask("get_server_status 4") == "Server 4 not found"


def test_starting_a_second_server_changes_nothing(machine):
    server = machine.server()
    machine.control("start_server -uid 0")
    assert machine.ask("get_server_list") == str(server)


def test_ps_lists_each_client_with_its_server_device_namespace_and_command(machine):
    client = machine.client()
    header, row = machine.ask("ps").splitlines()
    assert header.split() == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
    assert row.split()[0] == str(client.pid)
    assert row.split()[1:4] == ["1", str(machine.server()), machine.gpu.uuid[:22]]


def test_clients_are_listed_by_their_host_pid(machine):
    client = machine.client()
    assert machine.ask(f"get_client_list {machine.server()}") == str(client.pid)
    head, entry = machine.ask("get_device_client_list").splitlines()
    assert head == f"[0] 00:00.0, {machine.gpu.product}"
    assert entry == f"{client.pid}.1"


@pytest.mark.parametrize("command", CHANGING)
def test_without_control_privileged_nothing_can_be_changed(machine, command):
    result = machine.control(command, pipe=_clients_directory(machine))
    assert result.returncode == 0
    assert result.stdout == f"Insufficient privileges for UID 0. {REFUSAL}\n"
    assert machine.ask("get_default_active_thread_percentage") == "100.0"


def test_quit_without_control_is_refused_and_questions_are_answered(machine):
    result = machine.control("quit", "get_default_active_thread_percentage", pipe=_clients_directory(machine))
    assert result.stdout == "Not enough privilege to execute quit command\n100.0\n"


def test_a_client_needs_control_alone_and_the_link_renewed_after_a_restart(machine):
    directory = machine.directory / "client"
    directory.mkdir()
    link = directory / "control"
    link.hardlink_to(machine.pipe / "control")
    assert machine.program(pipe=directory)("create")["uuid"] == machine.gpu.uuid
    assert machine.ask(f"get_client_list {machine.server()}")
    machine.daemon.kill()
    machine.daemon.wait()
    machine.start_daemon("-multiuser-server")
    assert machine.control("get_server_list", pipe=directory).returncode == 1
    link.unlink()
    link.hardlink_to(machine.pipe / "control")
    client = machine.program(pipe=directory)
    client("create")
    assert machine.ask(f"get_client_list {machine.server()}") == str(client.pid)


def test_an_unknown_process_cannot_be_terminated(machine):
    assert machine.ask(f"terminate_client {machine.server()} 0") == "Invalid process 0!\n1"
    assert machine.ask(f"terminate_client {machine.server()} {2**22 + 1}") == f"Invalid process {2**22 + 1}!\n1"
    assert machine.ask(f"terminate_client {machine.server()} {os.getpid()}") == "201", "it lives, and has no context"
    assert machine.ask("terminate_client 4 1") == "Server 4 not found\nServer 4 not found!\n1"


@pytest.mark.parametrize(
    "command",
    [
        "get_active_thread_percentage 4",
        "set_active_thread_percentage 4 50",
        "get_device_pinned_mem_limit 4 0",
        "get_client_list 4",
    ],
)
def test_a_question_about_an_unknown_server_says_that_it_is_not_found(machine, command):
    assert machine.ask(command) == "Server 4 not found"


@pytest.mark.parametrize(
    "command",
    [
        "set_default_device_pinned_mem_limit 0 1G",
        "set_default_client_priority 1",
        "start_server -uid 0",
        "get_client_list {server}",
        "set_device_pinned_mem_limit {server} 0 1G",
        "get_device_pinned_mem_limit {server} 0",
    ],
)
def test_silence_is_the_answer(machine, command):
    result = machine.control(command.format(server=machine.server()))
    assert (result.returncode, result.stdout) == (0, "")


def test_start_server_returns_at_once_and_the_next_command_finds_it_up(idle):
    idle.start_daemon("-multiuser-server")
    listed = idle.control("get_server_list", "start_server -uid 0", "get_server_list").stdout.split()
    assert len(listed) == 1
    idle.until(lambda: idle.ask(f"get_server_status {listed[0]}") == "ACTIVE")


def test_a_second_daemon_on_the_same_directory_is_refused(machine):
    result = machine.control_program("-f", CUDA_VISIBLE_DEVICES=machine.gpu.uuid)
    assert (result.returncode, result.stdout) == (1, "An instance of this daemon is already running\n")


def test_a_daemon_for_a_gpu_that_is_not_there_ends_silently_with_100(idle):
    result = idle.control_program("-f", CUDA_VISIBLE_DEVICES="GPU-00000000-0000-0000-0000-000000000000")
    assert (result.returncode, result.stdout, result.stderr) == (100, "", "")


def test_quit_of_an_idle_daemon_leaves_sockets_and_lock(machine):
    assert (machine.pipe / "nvidia-cuda-mps-control.pid").read_text() == str(machine.daemon.pid)
    assert machine.control("quit").returncode == 0
    assert machine.daemon.wait(SECONDS) == 0
    assert {entry.name for entry in machine.pipe.iterdir()} == {"control", "control_privileged", "control_lock"}


def test_sigterm_kills_the_daemon_and_leaves_its_files(machine):
    machine.daemon.terminate()
    assert machine.daemon.wait(SECONDS) == -signal.SIGTERM
    left = {"control", "control_privileged", "control_lock", "log", "nvidia-cuda-mps-control.pid"}
    assert {entry.name for entry in machine.pipe.iterdir()} == left


def test_start_server_by_the_clients_socket_is_obeyed_from_uid_0(idle):
    idle.start_daemon("-multiuser-server")
    idle.control("start_server -uid 0", pipe=_clients_directory(idle))
    assert idle.ask("get_server_list").isdigit()


OF_THE_SERVER = {
    "set_active_thread_percentage {server} 100": "100.0\n",
    "set_device_pinned_mem_limit {server} 0 100G": "",
    "terminate_client {server} {client}": "0\n",
    "shutdown_server {server} -f": "",
}


@pytest.mark.parametrize("command", OF_THE_SERVER)
def test_by_the_clients_socket_uid_0_commands_the_server(machine, command):
    """The reason why a client may not be UID 0: the daemon obeys UID 0 even in a container with only that socket."""
    client = machine.client()
    text = command.format(server=machine.server(), client=client.pid)
    assert machine.control(text, pipe=_clients_directory(machine)).stdout == OF_THE_SERVER[command]


@pytest.mark.parametrize("command", [*OF_THE_SERVER, "start_server -uid 0"])
def test_by_the_clients_socket_other_users_change_nothing(machine, command):
    client = machine.client()
    text = command.format(server=machine.server(), client=client.pid)
    answer = machine.control(text, pipe=_clients_directory(machine), user=USER).stdout
    after = "800\n" if command.startswith("terminate_client") else ""
    assert answer == f"Insufficient privileges for UID {USER}. {REFUSAL}\n{after}"
    assert machine.ask(f"get_client_list {machine.server()}") == str(client.pid)


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("get_server_status", "A server PID is required\n"),
        ("start_server", "A user id (UID) is required to start a new server\n"),
        ("terminate_client", "Server 0 not found\nServer 0 not found!\n1\n"),
        ("set_default_active_thread_percentage", "100.0\n"),
        ("set_default_device_pinned_mem_limit 0", ""),
        ("get_default_device_pinned_mem_limit", ""),
        ("get_device_client_list 4", "Server 4 not found\n"),
    ],
)
def test_a_missing_argument_is_answered_so(machine, command, answer):
    assert machine.control(command).stdout == answer


def test_a_server_shut_down_ends_with_its_last_client(machine):
    server, client = machine.server(), machine.client()
    assert machine.ask(f"shutdown_server {server}") == ""
    assert machine.ask("get_server_list") == str(server)
    client.kill()
    machine.until(lambda: machine.ask("get_server_list") == "")


def test_device_query_shows_the_default_devices_and_the_servers(machine):
    title = ["Device", "Ordinal", "PCI", "IDs", "UUID", "Name", "Attributes"]
    lines = machine.ask("device_query").splitlines()
    assert [lines[0], lines[4]] == ["Default", f"Server {machine.server()}"]
    assert lines[1].split() == lines[5].split() == title
    assert lines[2].split()[2] == lines[6].split()[2] == machine.gpu.uuid


def test_in_the_foreground_everything_is_logged_to_standard_error(machine):
    machine.client()
    assert list(machine.log.iterdir()) == []
    text = machine.daemon_log.read_text()
    assert re.search(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} Control [ \d]{4}\d\] ", text, re.MULTILINE)
    assert re.search(r"^\[[^\]]* Server [ \d]{4}\d\] ", text, re.MULTILINE)


def test_logs_grow_by_two_kilobytes_for_each_client_and_can_be_truncated(idle):
    machine = idle
    machine.control_program("-d", "-multiuser-server", CUDA_VISIBLE_DEVICES=machine.gpu.uuid)
    server_log, control_log = machine.log / "server.log", machine.log / "control.log"
    machine.client()("close")
    before = server_log.stat().st_size, control_log.stat().st_size
    for _ in range(3):
        machine.client().kill()
    machine.until(lambda: not machine.ask(f"get_client_list {machine.server()}"))
    each = [(log.stat().st_size - size) / 3 for log, size in zip((server_log, control_log), before, strict=True)]
    assert 800 < each[0] < 3000
    assert 200 < each[1] < 1500
    assert "User did not send valid credentials" in control_log.read_text()
    with server_log.open("r+") as file:
        file.truncate(0)
    machine.client()
    assert server_log.read_bytes()[:1] == b"["
    machine.control("quit -t 0")
