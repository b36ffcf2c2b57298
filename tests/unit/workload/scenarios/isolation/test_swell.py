"""swell: refused peaks are waited for and counted, and a peak that is kept shuts the others out."""

from typing import Any

import pytest

from gpushare_workload.backend import OutOfMemoryError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.isolation import swell
from gpushare_workload.scenarios.isolation.swell import Cycle, SwellResult
from tests.unit.clock import Clock
from tests.unit.workload.scenarios.sharing.running import runner

MIB = 1 << 20
BUSY, RETRY = 0.1, 0.01

run = runner(swell, {"duration": 0.2, "busy": 10.0, "repeats": 1})


class Waiting(Stop):
    """Waits by moving the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, seconds: float) -> bool:
        self._clock.now += seconds
        return self.asked()


class SmallGpu:
    """A GPU whose memory is taken until `free_at`; a kernel moves the clock. `log` has each allocation and release, and
    the end of the run."""

    def __init__(self, clock: Clock, free_at: float = 0.0) -> None:
        self._clock, self._free_at = clock, free_at
        self.log: list[tuple[str, float]] = []

    def allocate(self, size: int) -> int:
        if self._clock.now < self._free_at:
            raise OutOfMemoryError(2, "out of memory")
        self.log.append(("allocate", round(self._clock.now, 3)))
        return 7

    def free(self, handle: int) -> None:
        assert handle == 7
        self.log.append(("free", round(self._clock.now, 3)))

    def spin(self, milliseconds: float) -> None:
        self._clock.now += milliseconds / 1000

    def synchronize(self) -> None: ...


def cycled(seconds: float, free_at: float = 0.0, late: float = 0.0, kept: bool = False) -> tuple[Cycle, SmallGpu]:
    clock = Clock(0.0)
    gpu: Any = SmallGpu(clock, free_at)
    cycle = Cycle(gpu, Waiting(clock), 100, BUSY, RETRY, clock)
    cycle.run(seconds, late, kept)
    gpu.log.append(("end", round(clock.now, 3)))
    cycle.close()
    return cycle, gpu


def test_a_peak_is_held_for_half_of_each_cycle() -> None:
    cycle, gpu = cycled(0.35)
    assert gpu.log == [("allocate", 0.0), ("free", 0.1), ("allocate", 0.2), ("free", 0.3), ("end", 0.35)]
    assert (cycle.cycles, cycle.refused, cycle.waited) == (2, 0, 0.0)
    assert cycle.seconds == pytest.approx(0.35)


def test_a_later_process_begins_in_another_part_of_its_cycle() -> None:
    assert cycled(0.25, late=0.1)[1].log == [("allocate", 0.1), ("free", 0.2), ("end", 0.25)]


def test_a_refused_peak_is_tried_again_and_the_wait_is_counted() -> None:
    cycle, gpu = cycled(0.2, free_at=0.045)
    assert gpu.log[0] == ("allocate", 0.05)
    assert cycle.refused == 5
    assert cycle.waited == pytest.approx(0.05)


def test_who_never_gets_its_peak_does_no_cycle_and_waits_to_the_end() -> None:
    cycle, gpu = cycled(0.2, free_at=9.0)
    assert (cycle.cycles, cycle.allocations, gpu.log) == (0, [], [("end", 0.2)])
    assert cycle.waited == pytest.approx(0.2)


def test_a_kept_peak_is_allocated_once_and_freed_after_the_end() -> None:
    cycle, gpu = cycled(0.4, kept=True)
    assert gpu.log == [("allocate", 0.0), ("end", 0.4), ("free", 0.4)]
    assert cycle.cycles == 2


def test_the_figures_are_those_of_all_processes() -> None:
    known: dict[str, str | bool] = {"backend": "numpy", "timed": False}
    winner = SwellResult(known, 9, 0, 0.0, (0.002, 0.004), 60 * MIB, 2.0)
    loser = SwellResult(known, 1, 30, 1.0, (), 10 * MIB, 2.0)
    assert swell.figures([winner, loser], 100 * MIB, 75) == {
        **known,
        "cycles_per_second": 5.0,
        "fewest_cycles": 1,
        "refused": 30.0,
        "waited_part": 0.25,
        "allocation_ms": 3.0,
        "free_mib": 100,
        "sum_of_peaks_mib": 70,
        "most_in_use_mib": 75,
    }


def test_every_way_is_measured_in_processes() -> None:
    assert [line["peaks"] for line in run(processes=1)] == ["together", "in-turns", "kept"]


def test_a_peak_that_is_no_higher_than_what_is_held_is_refused() -> None:
    with pytest.raises(ValueError, match="--high 10: must be above --low 10"):
        run(high=10.0)


@pytest.mark.usefixtures("driver")
def test_on_a_simulated_gpu_a_kept_peak_shuts_the_other_process_out() -> None:
    [line] = run(peaks=[swell.PeakTimes.KEPT], duration=0.5)
    assert (line["fewest_cycles"], line["backend"]) == (0, "numpy on a simulated GPU")
    assert line["refused"] > 0
    assert line["most_in_use_mib"] > line["free_mib"] * 0.6
