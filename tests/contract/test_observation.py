"""The basis of observation and enforcement: NVML's figures beside MPS' limits, and ends that hurt nobody."""

import pytest

from gpushare.nvml.types import TOLERANCE_MIB
from tests.contract.conftest import Machine, Program

MIB = 1 << 20
PIECES_MIB = (256, 64, 16, 4, 2)


def shown_mib(machine: Machine, program: Program) -> int:
    clients = {item.pid: item.memory_mib for item in machine.nvml.processes(machine.gpu.uuid).mps_clients}
    return clients[program.pid]


def fill(program: Program) -> None:
    """Allocates until even the smallest piece is refused."""
    for mib in PIECES_MIB:
        while "error" not in program(f"alloc {mib * MIB}"):
            pass


@pytest.mark.parametrize("threads", [5, 25, 100])
@pytest.mark.parametrize("limit_mib", [1024, 4096, 16384])
def test_nvml_shows_little_more_than_the_limit_of_a_client_that_keeps_it(machine, threads, limit_mib):
    """The tolerance above a grant, within which no violation is reported, covers the difference."""
    machine.ask(f"set_device_pinned_mem_limit {machine.server()} 0 {limit_mib}M")
    client = machine.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(threads))
    fill(client)
    shown = shown_mib(machine, client)
    print(f"{threads} % and {limit_mib} MiB: NVML shows {shown - limit_mib:+} MiB")
    assert limit_mib - 2 * PIECES_MIB[-1] <= shown <= limit_mib + TOLERANCE_MIB


def test_nvml_shows_what_a_client_took_that_lost_its_limit(machine):
    machine.ask(f"set_device_pinned_mem_limit {machine.server()} 0 1024M")
    client = machine.client(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="garbage")
    assert "error" not in client(f"alloc {4096 * MIB}")
    assert shown_mib(machine, client) >= 4096


def test_a_process_without_mps_killed_in_mid_kernel_leaves_clients_alone(machine):
    clients = [machine.client() for _ in range(3)]
    for _ in range(5):
        non_mps = machine.non_mps()
        non_mps("create")
        non_mps("launch 5000")
        non_mps.kill()
        for client in clients:
            client("launch 1")
            assert "error" not in client("sync")


def test_nvml_shows_a_gpu_as_busy_with_a_kernel_and_idle_with_a_context(machine):
    client = machine.client()
    machine.until(lambda: machine.nvml.utilization(machine.gpu.uuid) == 0)
    client("launch 3000")
    machine.until(lambda: machine.nvml.utilization(machine.gpu.uuid) >= 90)
    client("sync")
    machine.until(lambda: machine.nvml.utilization(machine.gpu.uuid) == 0)
