"""Contexts on one GPU: refusals, memory, and the state after a fault."""

import pytest

from gpushare.simulation.driver.failure_outcome import FailureCause
from gpushare.simulation.driver.gpu import DriverComputeMode, RefusedByDriver, SimulatedGpu

GIB = 1 << 30


@pytest.fixture
def gpu():
    return SimulatedGpu("GPU-1", 0, 0, "NVIDIA H200", sms=132, memory_mib=143155)


def refusal(call, *arguments):
    with pytest.raises(RefusedByDriver) as caught:
        call(*arguments)
    return caught.value.code


def test_without_mps_an_exclusive_gpu_belongs_to_one_process(gpu):
    gpu.mode = DriverComputeMode.EXCLUSIVE_PROCESS
    gpu.open_compute(10)
    assert refusal(gpu.open_compute, 11) == 46
    assert refusal(gpu.open_server, 12) == 46


def test_a_prohibited_gpu_refuses_programs_servers_and_new_clients(gpu):
    server = gpu.open_server(10)
    gpu.mode = DriverComputeMode.PROHIBITED
    assert refusal(gpu.open_compute, 11) == 46
    assert refusal(gpu.open_server, 12) == 46
    assert refusal(gpu.open_client, 13, server, 25, None) == 46


def test_a_server_cannot_take_back_an_exclusive_gpu(gpu):
    gpu.mode = DriverComputeMode.EXCLUSIVE_PROCESS
    server = gpu.open_server(10)
    client = gpu.open_client(11, server, 25, None)
    gpu.fail(FailureCause.ILLEGAL_ADDRESS, client, now=0)
    assert refusal(gpu.open_compute, 12) == 46
    gpu.close(client, 0.0)
    gpu.open_compute(12)
    assert refusal(gpu.open_client, 13, server, 25, None) == 46


def test_a_failed_context_keeps_memory_until_its_process_ends(gpu):
    client = gpu.open_client(11, gpu.open_server(10), 25, None)
    gpu.allocate(client, GIB)
    before = gpu.free()
    gpu.fail(FailureCause.ILLEGAL_ADDRESS, client, now=0)
    assert gpu.free() == before
    gpu.close(client, 0.0)
    assert gpu.free() == gpu.memory_mib << 20


def test_a_fault_stays_on_its_own_server_and_leaves_programs_without_mps(gpu):
    first, other = gpu.open_server(10), gpu.open_server(20)
    culprit, elsewhere = gpu.open_client(11, first, 25, None), gpu.open_client(21, other, 25, None)
    plain = gpu.open_compute(30)
    gpu.fail(FailureCause.TRAP, culprit, now=0)
    assert (culprit.error, elsewhere.error, plain.error) == (719, 0, 0)
    assert (first.faulted, other.faulted) == (True, False)


def test_a_kernel_takes_longer_on_fewer_sms_and_queues_behind_the_last(gpu):
    client = gpu.open_client(11, gpu.open_server(10), 25, None)
    gpu.launch(client, 8, now=0.0)
    gpu.launch(client, 8, now=0.0)
    assert client.remaining_ms(0.0) == pytest.approx(2 * 8 * 132 / 32)
    assert client.remaining_ms(1.0) == 0


def test_memory_is_bounded_by_the_gpu_without_a_limit(gpu):
    client = gpu.open_client(11, gpu.open_server(10), 25, None)
    assert refusal(gpu.allocate, client, gpu.memory_mib << 20) == 2
    handle = gpu.allocate(client, gpu.available(client))
    assert gpu.free() == 0
    assert refusal(gpu.open_compute, 12) == 2
    del client.allocations[handle]
    gpu.open_compute(12)


def test_a_gpu_is_busy_while_any_kernel_runs(gpu):
    client = gpu.open_client(11, gpu.open_server(10), 100, None)
    assert gpu.utilization(now=99.0) == 0
    gpu.launch(client, 50, now=100.0)
    assert gpu.utilization(now=100.02) == 12
    assert gpu.utilization(now=100.1) == 30
    assert gpu.utilization(now=100.2) == 10
    assert gpu.utilization(now=100.3) == 0


def test_simultaneous_kernels_count_once_as_busy_time(gpu):
    server = gpu.open_server(10)
    first, other = gpu.open_client(11, server, 100, None), gpu.open_client(12, server, 100, None)
    gpu.launch(first, 40, now=100.0)
    gpu.launch(other, 40, now=100.02)
    gpu.launch(first, 20, now=100.1)
    assert gpu.utilization(now=100.15) == 48


@pytest.mark.parametrize("end", ["fail", "close"])
def test_a_kernel_that_is_cut_off_was_busy_until_then(gpu, end):
    client = gpu.open_client(11, gpu.open_server(10), 100, None)
    gpu.launch(client, 60_000, now=100.0)
    if end == "fail":
        gpu.fail(FailureCause.TERMINATED, client, now=100.05)
    else:
        gpu.close(client, 100.05)
    assert gpu.utilization(now=100.15) == 30


def test_a_gpu_that_is_busy_all_day_is_busy(gpu):
    client = gpu.open_client(11, gpu.open_server(10), 100, None)
    for tenth in range(10_000):
        gpu.launch(client, 100, now=100.0 + tenth / 10)
    assert gpu.utilization(now=1100.0) == 100
