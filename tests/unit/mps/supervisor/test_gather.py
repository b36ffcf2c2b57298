"""What the supervisor reads for a decision, and how often."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.api.conditions import DaemonReason
from gpushare.mps.clock import boot_clock
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.protocol import MpsProtocol
from gpushare.mps.supervisor.gather import Gatherer
from gpushare.mps.supervisor.state import Shown, SupervisorState
from gpushare.mps.wire import DaemonLimits, DaemonState

LIMITS = DaemonLimits(threads=50, memory_mib=8192)


class Program:
    """A control program that notes how often each of the limits was read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def default_limits(self) -> tuple[float, int]:
        self.read.append("defaults")
        return 50.0, 8192

    def server_limits(self, server: int) -> tuple[float, int]:
        self.read.append("server")
        return 50.0, 8192

    def survey(self, last: Any) -> tuple[dict[int, str], dict[int, int]]:
        return {501: "ACTIVE"}, {}


def gatherer(path: Path, program: Program, protocol: MpsProtocol = MpsProtocol.V2) -> Any:
    gpu = GpuDir(path / "GPU-0")
    gpu.path.mkdir(exist_ok=True)
    process = SimpleNamespace(protocol=protocol)
    return Gatherer(gpu, "inference", process, program, program, None, None, threading.Lock())  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", MpsProtocol)
def test_limits_that_were_written_are_read_back_twice_a_minute(tmp_path: Path, protocol: MpsProtocol) -> None:
    program = Program()
    defaults = LIMITS if protocol is MpsProtocol.V2 else None
    state = SupervisorState(server=501, server_limits_written=LIMITS, defaults_written=defaults)
    gathered = gatherer(tmp_path, program, protocol)
    for now in range(1000, 1060, 2):
        state = gathered._read_back(state, float(now))  # noqa: SLF001
    assert program.read.count("server") == 2
    assert state.server_limits == Shown(50.0, 8192)


@pytest.mark.parametrize(("ahead", "lives"), [(-5.0, True), (0.001, True), (60.0, False), (-900.0, False)])
def test_another_shares_supervisor_lives_if_it_wrote_lately(tmp_path: Path, ahead: float, lives: bool) -> None:
    """`ahead`: of our look at the clock, which comes before the file is read."""
    gathered, now = gatherer(tmp_path, Program()), boot_clock()
    state = DaemonState(uuid="GPU-0", share="training", heartbeat=now + ahead, reason=DaemonReason.STOPPING)
    write_model(GpuDir(tmp_path / "GPU-0").state, state)
    assert gathered._other_share(now) == ("training" if lives else "")  # noqa: SLF001
