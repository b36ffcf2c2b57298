"""The driver process, with NVML and clients."""

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.api import names
from gpushare.api.compute_mode import ComputeMode
from gpushare.nvml.types import GpuLostError, NvmlError
from gpushare.simulation import paths
from gpushare.simulation.client import CudaError, SimulatedContext
from gpushare.simulation.nvml import DriverChannel, SimulatedNvml
from gpushare.simulation.wire import connect

SECONDS = 30.0
PROGRAM = """
import sys, time
from gpushare.simulation.client import SimulatedContext
context = SimulatedContext.create()
{body}
"""


def program(body: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM.format(body=body)], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def nvml(driver):
    simulated = SimulatedNvml(driver[0], seconds=0.5)
    yield simulated
    simulated.close()


@pytest.fixture
def admin(driver):
    channel = DriverChannel(driver[0])
    yield channel.ask
    channel.close()


def test_the_directory_is_that_of_the_api_names():
    assert paths.DEFAULT_DIRECTORY == names.SIMULATION_DIR


def test_a_restarted_driver_has_the_same_gpus_and_no_contexts(driver, nvml, start_again):
    before = nvml.gpus().infos
    nvml.set_compute_mode(before[0].uuid, ComputeMode.EXCLUSIVE_PROCESS)
    context = SimulatedContext.create()
    start_again()
    assert nvml.gpus().infos == before
    assert nvml.compute_mode(before[0].uuid) is ComputeMode.DEFAULT
    assert nvml.processes(before[0].uuid).compute == ()
    with pytest.raises(CudaError) as error:
        context.synchronize()
    assert error.value.code == 999
    context.close()


def test_the_driver_removes_its_sockets_when_it_ends(driver):
    directory, process = driver
    process.terminate()
    assert process.wait(SECONDS) == 0
    assert [path.name for path in directory.rglob("*")] == ["dev"]


def test_an_idle_driver_takes_no_processor_time(driver, nvml):
    def ticks() -> int:
        return sum(int(field) for field in Path(f"/proc/{driver[1].pid}/stat").read_text().split()[13:15])

    nvml.gpus()
    before = ticks()
    time.sleep(1)
    assert ticks() - before <= 1


def test_a_lost_gpu_is_not_listed_and_answers_no_request(nvml, admin):
    first, second = nvml.gpus().infos
    admin("lose", uuid=first.uuid)
    assert nvml.gpus().infos == [replace(second, nvlinked=frozenset())]
    with pytest.raises(GpuLostError):
        nvml.processes(first.uuid)
    admin("recover", uuid=first.uuid)
    assert nvml.gpus().infos == [first, second]


def test_a_gpu_that_nvml_does_not_describe_is_left_out_and_named(nvml, admin):
    first, second = nvml.gpus().infos
    admin("garble", uuid=first.uuid)
    listed = nvml.gpus()
    assert listed.infos == [replace(second, nvlinked=frozenset())]
    assert listed.unreadable == ["NVML does not describe GPU 0, so it is left out: Unknown Error"]
    with pytest.raises(NvmlError, match="Unknown Error"):
        nvml.processes(first.uuid)
    admin("ungarble", uuid=first.uuid)
    assert (nvml.gpus().infos, nvml.gpus().unreadable) == ([first, second], [])


def test_another_card_in_the_place_of_one_has_another_uuid(nvml, admin):
    first, second = nvml.gpus().infos
    admin("exchange", uuid=first.uuid, to="GPU-other")
    replaced, same = nvml.gpus().infos
    assert (replaced.uuid, replaced.index, replaced.minor) == ("GPU-other", first.index, first.minor)
    assert same.uuid == second.uuid
    with pytest.raises(NvmlError, match="Not Found"):
        nvml.processes(first.uuid)


def test_a_wedged_gpu_is_an_error_and_the_other_one_answers(nvml, admin):
    first, second = nvml.gpus().infos
    admin("wedge", uuid=first.uuid)
    with pytest.raises(NvmlError, match="no answer"):
        nvml.processes(first.uuid)
    assert nvml.compute_mode(second.uuid) is ComputeMode.DEFAULT
    admin("unwedge", uuid=first.uuid)
    assert nvml.compute_mode(first.uuid) is ComputeMode.DEFAULT


def test_without_a_driver_nvml_says_where_it_looked(tmp_path):
    with pytest.raises(NvmlError, match=str(tmp_path)):
        SimulatedNvml(tmp_path).gpus()


def test_a_process_without_mps_is_listed_and_keeps_an_exclusive_gpu(nvml, admin):
    uuid = nvml.gpus().infos[0].uuid
    nvml.set_compute_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS)
    admin("add_process", uuid=uuid, pid=4711, memory_mib=1000)
    (listed,) = nvml.processes(uuid).compute
    assert (listed.pid, listed.memory_mib) == (4711, 1000)
    with pytest.raises(CudaError, match="46"):
        SimulatedContext.create()
    admin("remove_process", uuid=uuid, pid=4711)
    SimulatedContext.create().close()


def test_running_kernels_and_xids_can_be_read(nvml, admin, daemon):
    daemon("-multiuser-server")
    uuid = nvml.gpus().infos[0].uuid
    context = SimulatedContext.create()
    context.launch(60_000)
    ((pid, left),) = admin("kernels", uuid=uuid)["kernels"]
    assert pid == os.getpid()
    assert 50_000 < left <= 60_000
    context.fault("illegal_address")
    assert admin("xids")["xids"][-1]["xid"] == 31
    assert admin("kernels", uuid=uuid)["kernels"] == []
    context.close()


def test_a_program_that_ends_after_its_kernels_hurts_no_client(driver, daemon):
    daemon("-multiuser-server")
    neighbour = SimulatedContext.create()
    neighbour.launch(600)
    assert program("context.launch(50); context.synchronize()").wait(SECONDS) == 0
    neighbour.synchronize()
    neighbour.close()


def test_a_forked_child_cannot_use_its_parents_context_nor_end_it(driver):
    context = SimulatedContext.create()
    child = os.fork()
    if not child:
        try:
            context.launch(1)
        except CudaError as error:
            context.close()
            os._exit(error.code)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    context.synchronize()
    context.close()


def test_a_killed_parent_is_dead_although_its_child_keeps_the_connection(driver, nvml):
    parent = program("import os\nif os.fork(): print('ready', flush=True)\ntime.sleep(30)")
    assert parent.stdout
    assert parent.stdout.readline() == "ready\n"
    uuid = nvml.gpus().infos[0].uuid
    assert [process.pid for process in nvml.processes(uuid).compute] == [parent.pid]
    parent.kill()
    parent.wait()
    end = time.monotonic() + SECONDS
    while nvml.processes(uuid).compute:
        assert time.monotonic() < end, "the killed parent is still listed"
        time.sleep(0.01)


def test_an_invalid_request_ends_its_own_connection_alone(driver, nvml):
    for garbage in (b"hello\n", b"[]\n", b'{"op":"alloc"}\n', b'{"op":"nonsense"}\n', b"x" * 200_000):
        sock = connect(paths.device_node(str(driver[0]), 0), SECONDS)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may hang up before it has read all
            sock.sendall(garbage)
            assert sock.recv(10) == b""
        sock.close()
    assert len(nvml.gpus().infos) == 2
