"""When a GPU is given back, and how an interrupted removal goes on."""

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

from gpushare.agent.aio.blocking import HungError
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.agent.reconcile.daemon_files import prepare, read_all
from gpushare.agent.reconcile.lifecycle import Lifecycle, StopEvidence, remove, waits_for
from gpushare.api.compute_mode import ComputeMode
from gpushare.api.conditions import DaemonReason
from gpushare.mps.files import ModelFiles, write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import DaemonLimits, DaemonState, DesiredDaemon
from tests.unit.clock import Clock

LIMITS = DaemonLimits(threads=50, memory_mib=1024)

STATE = DaemonState(uuid="GPU-1", share="a", heartbeat=99.0, reason=DaemonReason.STOPPING)
RUNS = StopEvidence(STATE, stop_age=60.0, control_alive=True, server_shown=True, now=100.0)
ENDED = replace(RUNS, state=structs.replace(STATE, stopped=True))
SILENT = replace(RUNS, state=structs.replace(STATE, heartbeat=10.0))
GONE = replace(SILENT, control_alive=False, server_shown=False)


@pytest.mark.parametrize(
    ("sentence", "evidence", "expected"),
    [
        ("a supervisor at work is waited for", RUNS, "waiting for the MPS pod"),
        ("a daemon that ended is done", ENDED, None),
        ("a silent supervisor whose daemon runs needs hands", SILENT, "still runs"),
        ("a server that NVML still shows holds the GPU", replace(GONE, server_shown=True), "still runs"),
        ("nothing is left of a pod that went away", GONE, None),
        ("the last heartbeat may be old when stop was just written: the pod gets time to start",
         replace(GONE, stop_age=1.0), "waiting for the MPS pod"),
        ("without any state the MPS pod gets its time to come", replace(GONE, state=None, stop_age=14.0), "waiting"),
        ("and is not waited for for ever", replace(GONE, state=None, stop_age=15.0), None),
    ],
)  # fmt: skip
def test_what_a_release_waits_for(sentence: str, evidence: StopEvidence, expected: str | None) -> None:
    waits = waits_for(evidence)
    assert (waits is None) if expected is None else (waits is not None and expected in waits), sentence


def test_daemon_json_is_removed_last(tmp_path: Path) -> None:
    directory = GpuDir(tmp_path / "GPU-1")
    (directory.path / "log").mkdir(parents=True)
    directory.client.mkdir()
    for path in (directory.wanted, directory.state, directory.client_control, directory.original_mode):
        path.touch()

    def busy(_: object) -> None:
        raise OSError("device or resource busy")

    with pytest.raises(OSError, match="busy"):
        remove(directory, rmtree=busy)
    assert directory.wanted.exists()
    remove(directory)
    assert not directory.path.exists()
    remove(directory)


class Ungated:
    def close(self, uuid: str) -> None:
        pass


@pytest.mark.parametrize("hours", [3, -3], ids=["set forward", "set back"])
async def test_an_mps_pod_has_its_time_to_come_whatever_the_time_of_day(tmp_path: Path, hours: int) -> None:
    directory, clock = GpuDir(tmp_path / "GPU-1"), Clock()
    directory.path.mkdir()
    write_model(directory.wanted, DesiredDaemon(uuid="GPU-1", share="a", limits=LIMITS, stop=True))
    written = time.time() - 3600 * hours
    os.utime(directory.wanted, (written, written))
    no_gpus = SimpleNamespace(views={})
    lifecycle = Lifecycle(tmp_path, no_gpus, Ungated(), clock, lambda: None, tmp_path)  # type: ignore[arg-type]
    planned = GpuPlan("GPU-1", "a", GpuStage.STOP, LIMITS)

    async def advanced(seconds: float) -> bool:
        """Tells whether the GPU has been given back."""
        clock.now += seconds
        (item,) = read_all(tmp_path, ModelFiles()).values()
        lifecycle.advance(SimpleNamespace(plan=planned, taken=item), ())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        return not directory.path.exists()

    assert not await advanced(0.0)
    assert not await advanced(14.0)
    assert await advanced(1.0)
    await lifecycle.close()


class SlowDriver:
    """A GPU whose mode is set by calls that do not return in time."""

    def __init__(self) -> None:
        self.views = {"GPU-1": SimpleNamespace(mode=ComputeMode.DEFAULT, lost=False)}

    async def mode(self, uuid: str) -> ComputeMode:
        raise HungError("GPU-1: no answer within 5 s")


async def test_a_failed_step_is_not_told_once_the_gpu_is_as_it_should_be(tmp_path: Path) -> None:
    directory, driver = GpuDir(tmp_path / "GPU-1"), SlowDriver()
    prepare(directory)
    write_model(directory.wanted, DesiredDaemon(uuid="GPU-1", share="a", limits=LIMITS))
    lifecycle = Lifecycle(tmp_path, driver, Ungated(), Clock(), lambda: None, tmp_path)  # type: ignore[arg-type]
    (taken,) = read_all(tmp_path, ModelFiles()).values()
    item = SimpleNamespace(plan=GpuPlan("GPU-1", "a", GpuStage.SERVE, LIMITS), taken=taken)

    async def told() -> str:
        waits = lifecycle.advance(item, ())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        return waits

    assert await told() == ""
    assert "setting the compute mode failed" in await told()
    driver.views = {"GPU-1": SimpleNamespace(mode=ComputeMode.EXCLUSIVE_PROCESS, lost=False)}
    assert await told() == ""
    await lifecycle.close()
