"""Limits, faults and ends of the workload's programs on the simulated GPU, which behaves as measured on an H200."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare_workload.backend import GpuError, open_backend
from gpushare_workload.backend.interface import KernelFault
from gpushare_workload.backend.work import LoadKind, Work
from gpushare_workload.gpus import inventory
from tests.unit.workload.conftest import wait_gone

pytestmark = pytest.mark.usefixtures("driver")
Start = Callable[..., Any]


@pytest.mark.parametrize("kind", list(LoadKind))
def test_work_runs_as_kernels_of_the_simulated_gpu_and_is_right(kind: LoadKind) -> None:
    backend = open_backend("numpy")
    assert backend.simulated
    task = backend.prepare(Work(kind, 8))
    task.launch()
    assert task.wrong(1) is None
    backend.close()


def test_a_fault_of_its_own_ends_a_program_that_runs_without_mps() -> None:
    backend = open_backend("numpy")
    with pytest.raises(GpuError, match="CUDA error 719"):
        backend.fault(KernelFault.TRAP)
    with pytest.raises(GpuError, match="CUDA error 719"):
        backend.prepare(Work(LoadKind.MEMORY, 8)).launch()
    backend.close()


@pytest.mark.parametrize(
    ("fault", "code", "neighbours_code"),
    [("illegal-address", 700, 700), ("trap", 719, 719), ("assert", 710, None)],
)
def test_a_fatal_fault_reaches_mps_neighbours_and_an_assert_does_not(
    daemon: Start, start_client: Start, fault: str, code: int, neighbours_code: int | None
) -> None:
    daemon()
    neighbour = start_client("fault", "--report-every", "0.05")
    neighbour.wait_for("progress")
    faulty = start_client("fault", "--role", "faulty", "--fault", fault, "--after", "0")
    assert faulty.end() == 0
    assert (faulty.lines[-1]["event"], faulty.lines[-1]["code"]) == ("faulted", code)
    if neighbours_code is None:
        neighbour.wait_for("progress")
        assert neighbour.terminate() == 0
    else:
        assert neighbour.end() == 3
        assert neighbour.lines[-1]["code"] == neighbours_code


def test_an_allocation_above_the_grant_is_refused_and_the_grant_fillable(daemon: Start, start_client: Start) -> None:
    daemon()
    hog = start_client("hog", "--step", "128", "--hold", "0.1", memory_mib=2048)
    assert hog.end() == 0
    reached, filled = (next(line for line in hog.lines if line["event"] == name) for name in ("reached", "filled"))
    assert reached["refused"]
    # The context itself counts: 520 MiB of the 2048 at 100 % of the threads.
    assert filled["held_bytes"] == 11 * 128 << 20


def test_an_allocation_above_the_grant_that_succeeds_is_held_then_wrong(daemon: Start, start_client: Start) -> None:
    daemon()
    hog = start_client("hog", "--escape", "garble", "--hold", "0.1", memory_mib=2048)
    assert hog.end() == 1
    assert [line["event"] for line in hog.lines] == ["reached", "holding", "finished", "wrong"]
    assert "3221225472 bytes were allocated, only 2147483648 were granted" in hog.lines[-1]["message"]


def test_a_hog_without_a_grant_says_which_variable_is_missing(start_client: Start) -> None:
    hog = start_client("hog")
    assert hog.end() == 2
    assert "GPUSHARE_MEMORY_BYTES is not set" in hog.lines[-1]["message"]


def test_an_endless_kernel_ends_in_good_order_soon_after_sigterm(daemon: Start, start_client: Start) -> None:
    daemon()
    neighbour = start_client("fault", "--report-every", "0.05")
    hog = start_client("hog", "--endless", "--hold", "0", memory_mib=2048)
    hog.wait_for("holding")
    neighbour.wait_for("progress")
    status = hog.terminate()
    assert (status, hog.lines[-1]["stopped"]) == (0, True)
    neighbour.lines.clear()
    neighbour.wait_for("progress")
    assert neighbour.terminate() == 0


def test_each_process_is_on_its_pinned_gpu_and_nvml_lists_it_there(start_client: Start) -> None:
    pin = start_client("pin", "--processes", "2", "--elements", "10")
    assert pin.end() == 0
    placed = [line for line in pin.lines if line["event"] == "placed"]
    late = pin.lines[-1]
    assert (late["event"], late["uuid"], late["then_set_to"]) == ("set-too-late", *inventory.visible()[:2])
    uuids = inventory.visible()
    assert [line["uuid"] for line in placed] == [*uuids, uuids[0], uuids[0]]
    assert all(line["listed_by_nvml"] for line in placed)
    assert [line["processes_on_gpu"] for line in placed] == [1, 1, 2, 2]


def test_a_process_that_may_see_one_gpu_is_pinned_to_that_one(start_client: Start) -> None:
    pin = start_client("pin", "--processes", "1", CUDA_VISIBLE_DEVICES="1")
    assert pin.end() == 0
    assert {line["uuid"] for line in pin.lines} == {inventory.visible()[1]}


def test_a_machine_whose_gpus_are_hidden_refuses_to_pin(start_client: Start) -> None:
    pin = start_client("pin", CUDA_VISIBLE_DEVICES="7")
    assert pin.end() == 3
    assert "no GPU is visible with CUDA_VISIBLE_DEVICES='7'" in pin.lines[-1]["message"]


def test_a_service_that_is_asked_to_end_soon_reports_what_it_measured(start_client: Start) -> None:
    service = start_client("serve", "--rate", "50", "--duration", "60")
    service.wait_for("started")
    status = service.terminate()
    measured, last = service.lines[-2:]
    assert (measured["event"], measured["stopped"]) == ("measured", True)
    assert (status, last["event"]) == (4, "stopped"), "a Job does not count it as done"


def test_a_mixture_that_is_asked_to_end_leaves_no_process_soon(daemon: Start, start_client: Start) -> None:
    daemon()
    mixture = start_client("mix", "--grid", "small", "--duration", "60")
    mixture.wait_for("started")
    children = children_of(mixture.process.pid)
    assert len(children) >= 2
    status = mixture.terminate()
    assert (status, mixture.lines[-1]["event"]) == (4, "stopped")
    # Python's own resource tracker, one of them, ends when it sees that its parent has.
    wait_gone(children)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
