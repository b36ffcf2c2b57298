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


def test_a_server_that_let_go_cannot_take_back_an_exclusive_gpu_from_a_non_mps_process(gpu):
    gpu.mode = DriverComputeMode.EXCLUSIVE_PROCESS
    server = gpu.open_server(10)
    client = gpu.open_client(11, server, 25, None)
    gpu.fail(FailureCause.ILLEGAL_ADDRESS, client, now=0)
    assert refusal(gpu.open_compute, 12) == 46
    gpu.close(client)
    gpu.open_compute(12)
    assert refusal(gpu.open_client, 13, server, 25, None) == 46


def test_a_failed_context_keeps_its_memory_until_its_process_ends_and_then_the_server_lets_go(gpu):
    client = gpu.open_client(11, gpu.open_server(10), 25, None)
    gpu.allocate(client, GIB)
    before = gpu.free()
    gpu.fail(FailureCause.ILLEGAL_ADDRESS, client, now=0)
    assert gpu.free() == before
    gpu.close(client)
    assert gpu.free() == gpu.memory_mib << 20


def test_a_fault_stays_on_its_own_server_and_leaves_programs_without_mps(gpu):
    one, other = gpu.open_server(10), gpu.open_server(20)
    culprit, elsewhere = gpu.open_client(11, one, 25, None), gpu.open_client(21, other, 25, None)
    plain = gpu.open_compute(30)
    gpu.fail(FailureCause.TRAP, culprit, now=0)
    assert (culprit.error, elsewhere.error, plain.error) == (719, 0, 0)
    assert (one.faulted, other.faulted) == (True, False)


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
