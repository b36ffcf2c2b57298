"""The limits of a client, by the daemon's settings and its own environment."""

import pytest

THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
PARTITIONING = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"
OUT_OF_MEMORY, NO_DEVICE = 2, 100
TOO_MANY_CLIENTS = (46, 808)  # the runtime's code and the driver API's
GIB = 1 << 30


def created(machine, **environ):
    program = machine.program(**environ)
    return program, program("create")


def fresh_server(machine, *commands):
    """Defaults reach the next server."""
    machine.control(f"shutdown_server {machine.server()} -f", *commands)
    machine.until(lambda: not machine.ask("get_server_list"))
    machine.server()


@pytest.mark.parametrize(
    ("percent", "sms"), [("50", 66), ("25", 32), ("20", 26), ("12.5", 16), ("10", 12), ("1", 8), ("100", 132)]
)
def test_a_percentage_shows_as_that_many_sms(machine, percent, sms):
    assert created(machine, **{THREADS: percent})[1]["sms"] == sms


def test_a_clients_percentage_only_tightens_the_default(machine):
    fresh_server(machine, "set_default_active_thread_percentage 25")
    assert created(machine)[1]["sms"] == 32
    assert created(machine, **{THREADS: "50"})[1]["sms"] == 32
    assert created(machine, **{THREADS: "10"})[1]["sms"] == 12


@pytest.mark.parametrize("value", ["0", "-1", "abc", "1000", ""])
def test_a_percentage_that_is_none_falls_back_to_the_default(machine, value):
    machine.control(f"set_active_thread_percentage {machine.server()} 25")
    assert created(machine, **{THREADS: value})[1]["sms"] == 32


def test_a_live_server_gives_a_new_percentage_to_new_clients(machine):
    server = machine.server()
    old, _ = created(machine)
    assert machine.ask(f"set_active_thread_percentage {server} 50") == "50.0"
    assert machine.ask(f"get_active_thread_percentage {server}") == "50.0"
    assert created(machine)[1]["sms"] == 66
    assert old("sync") == {}


def test_per_context_partitioning_shows_all_sms_unless_fewer_are_asked_for(machine):
    machine.control(f"set_active_thread_percentage {machine.server()} 25")
    assert created(machine, **{PARTITIONING: "1"})[1]["sms"] == machine.gpu.sms
    assert created(machine, **{PARTITIONING: "1", THREADS: "25"})[1]["sms"] == 32


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("4G", "4G"),
        ("4096M", "4G"),
        ("4GB", "4G"),
        ("4g", "4G"),
        ("4 G", "4M"),
        ("1.5G", "1M"),
        ("1023M", "1023M"),
        ("1537M", "1G"),
        ("12000M", "11G"),
    ],
)
def test_the_daemon_reads_a_memory_value_so_and_shows_whole_gib(machine, text, shown):
    result = machine.control(f"set_default_device_pinned_mem_limit 0 {text}")
    assert result.returncode == 0
    assert machine.ask("get_default_device_pinned_mem_limit 0") == shown


@pytest.mark.parametrize("text", ["0", "garbage"])
def test_a_memory_value_that_is_none_silently_removes_the_limit(machine, text):
    machine.control("set_default_device_pinned_mem_limit 0 4G")
    assert machine.control(f"set_default_device_pinned_mem_limit 0 {text}").returncode == 0
    assert machine.ask("get_default_device_pinned_mem_limit 0") == ""


def test_a_negative_memory_value_becomes_a_huge_limit(machine):
    machine.control("set_default_device_pinned_mem_limit 0 -1")
    assert machine.ask("get_default_device_pinned_mem_limit 0") == "17179869183G"


def test_a_limit_set_by_uuid_shows_under_the_uuid_alone_and_works(machine):
    uuid = machine.gpu.uuid
    fresh_server(machine, f"set_default_device_pinned_mem_limit {uuid} 4G")
    assert machine.ask(f"get_default_device_pinned_mem_limit {uuid}") == "4G"
    assert machine.ask("get_default_device_pinned_mem_limit 0") == ""
    assert machine.client()(f"alloc {5 * GIB}") == {"error": OUT_OF_MEMORY}


@pytest.fixture
def limited(machine):
    """A machine whose clients get 4 GiB."""
    machine.control(f"set_device_pinned_mem_limit {machine.server()} 0 4096M")
    return machine


@pytest.mark.parametrize("environ", [{}, {MEMORY: ""}, {MEMORY: "0=100G"}], ids=["absent", "empty", "larger"])
def test_the_daemons_memory_limit_binds_a_client_that_sets_no_smaller_one(limited, environ):
    client = limited.client(**environ)
    assert client(f"alloc {4 * GIB}") == {"error": OUT_OF_MEMORY}
    assert client(f"alloc {3 * GIB}") == {}
    assert client(f"alloc {1 * GIB}") == {"error": OUT_OF_MEMORY}


@pytest.mark.parametrize("device", ["0", "uuid"])
def test_a_clients_own_smaller_memory_limit_binds(limited, device):
    name = limited.gpu.uuid if device == "uuid" else device
    client = limited.client(**{MEMORY: f"{name}=2G"})
    assert client(f"alloc {2 * GIB}") == {"error": OUT_OF_MEMORY}
    assert client(f"alloc {1 * GIB}") == {}


@pytest.mark.parametrize(
    "value",
    [
        "GPU-00000000-0000-0000-0000-000000000000=2G",
        "1=3G",
        "0=garbage",
        "garbage",
        "0=0",
        "0=2G,garbage",
        "0=2G,1=3G",
    ],
)
def test_one_bad_entry_in_a_clients_variable_removes_every_memory_limit(limited, value):
    assert limited.client(**{MEMORY: value})(f"alloc {64 * GIB}") == {}, (
        "far above the limit, and less than any GPU has"
    )


def test_a_limit_is_exact_to_the_mib_though_it_is_shown_rounded(machine):
    machine.control(f"set_device_pinned_mem_limit {machine.server()} 0 1537M")
    client = machine.client(**{THREADS: "5"})
    assert client(f"alloc {1460 << 20}") == {}


def test_free_memory_is_what_the_limit_leaves_and_total_the_whole_gpu(limited):
    info = limited.client()("info")
    assert 3 * GIB < info["free"] <= 4 * GIB
    assert info["total"] > 0.95 * limited.gpu.memory_mib * (1 << 20)


def test_a_limit_below_the_contexts_own_need_makes_the_start_fail(machine):
    assert created(machine, **{MEMORY: "0=100M"})[1] == {"error": OUT_OF_MEMORY}
    assert machine.client()("info")


@pytest.mark.parametrize(
    ("percent", "low", "high"), [("100", 500, 620), ("50", 310, 366), ("25", 148, 218), ("12", 82, 146), ("5", 50, 70)]
)
def test_a_context_takes_memory_by_its_thread_percentage(machine, percent, low, high):
    """Wide bounds, because the program's own kernels count too."""
    client = machine.client(**{THREADS: percent})
    (listed,) = machine.nvml.processes(machine.gpu.uuid).mps_clients
    assert listed.pid == client.pid
    assert low <= listed.memory_mib <= high


def test_a_context_without_mps_takes_526_mib_or_more_and_the_server_66(machine):
    non_mps = machine.non_mps()
    non_mps("create")
    taken = {process.pid: process.memory_mib for process in machine.nvml.processes(machine.gpu.uuid).compute}
    assert abs(taken[machine.server()] - 66) <= 10
    assert 500 <= taken[non_mps.pid] <= 620


@pytest.mark.parametrize("visible", ["0", "uuid"])
def test_a_client_may_name_its_daemons_gpu_by_index_or_uuid(machine, visible):
    name = machine.gpu.uuid if visible == "uuid" else visible
    assert created(machine, CUDA_VISIBLE_DEVICES=name)[1]["uuid"] == machine.gpu.uuid


@pytest.mark.parametrize("visible", ["1", "GPU-00000000-0000-0000-0000-000000000000", ""])
def test_a_client_that_names_another_gpu_has_no_device(machine, visible):
    assert created(machine, CUDA_VISIBLE_DEVICES=visible)[1] == {"error": NO_DEVICE}


def test_a_client_without_the_device_node_has_no_device(machine):
    if not machine.simulated:
        pytest.skip("needs an unprivileged container: CUDA run by root makes the node itself")
    bare = machine.directory / "bare"
    bare.mkdir()
    assert created(machine, GPUSHARE_SIMULATION_DIR=str(bare))[1] == {"error": NO_DEVICE}


def test_the_49th_client_is_refused_and_the_log_says_why(machine):
    clients = [machine.program(**{THREADS: "5"}) for _ in range(49)]
    for client in clients:
        client.send("create")
    answers = [client.answer() for client in clients]
    (refused,) = [answer for answer in answers if "error" in answer]
    assert refused["error"] in TOO_MANY_CLIENTS
    line = "Failed to accept new client. Maximum number of clients (48) reached."
    assert line in machine.daemon_log.read_text()
