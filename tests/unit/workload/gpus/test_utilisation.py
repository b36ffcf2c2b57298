"""How busy the GPU was, from what NVML reports while something runs."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from gpushare_workload.gpus.monitor import SETTLED_SECONDS, GpuMonitorError, GpuUsage
from gpushare_workload.gpus.utilisation import GpuWatch, Utilisation


class Monitor:
    """Reports `usage`, and says when it was asked `times` times."""

    def __init__(self, usage: GpuUsage | GpuMonitorError, times: int = 1) -> None:
        self._usage, self._left = usage, times
        self.asked = threading.Event()

    def usage(self) -> GpuUsage:
        self._left -= 1
        if self._left <= 0:
            self.asked.set()
        if isinstance(self._usage, GpuMonitorError):
            raise self._usage
        return self._usage


def seen_by(monitor: Monitor) -> Utilisation:
    opened: Callable[[], Any] = lambda: monitor  # noqa: E731
    with GpuWatch(opened) as seen:
        assert monitor.asked.wait(30)
    return seen


def test_what_nvml_reports_at_first_is_of_the_time_before() -> None:
    seen = Utilisation(began=0.0)
    for now, percent in ((SETTLED_SECONDS / 2, 100.0), (SETTLED_SECONDS, 40.0), (1.0, 60.0), (1.1, 51.0)):
        seen.add(GpuUsage(10, percent), now)
    assert seen.busy_percent == 50.3


def test_memory_counts_at_any_time_by_its_peak() -> None:
    seen = Utilisation(began=100.0)
    for mib in (10, 30, 20):
        seen.add(GpuUsage(mib), 100.0)
    assert (seen.peak_mib, seen.busy_percent) == (30, None)


def test_the_gpu_is_read_while_something_runs() -> None:
    assert seen_by(Monitor(GpuUsage(512, 70.0), times=2)).peak_mib == 512


def test_nvml_that_fails_is_no_figure_and_no_error() -> None:
    seen = seen_by(Monitor(GpuMonitorError("gone")))
    assert (seen.peak_mib, seen.busy_percent) == (None, None)


def test_nvml_that_cannot_be_opened_is_no_figure_and_no_error() -> None:
    def fails() -> None:
        raise GpuMonitorError("no driver")

    with GpuWatch(fails) as seen:
        pass
    assert seen.peak_mib is None


def test_each_stretch_of_work_has_figures_of_its_own() -> None:
    monitor: Any = Monitor(GpuUsage(512), times=1)
    watch = GpuWatch(lambda: monitor)
    with watch as first:
        assert monitor.asked.wait(30)
    monitor.asked.clear()
    with watch as second:
        assert monitor.asked.wait(30)
    assert first is not second
    assert second.peak_mib == 512


def test_a_machine_without_nvml_has_no_figure() -> None:
    with GpuWatch(lambda: None) as seen:
        pass
    assert (seen.peak_mib, seen.busy_percent) == (None, None)


@pytest.mark.usefixtures("driver")
def test_a_simulated_gpu_reports_its_memory_alone() -> None:
    with GpuWatch() as seen:
        for thread in threading.enumerate():
            if thread.name == "utilisation":
                thread.join(0.5)
    assert (seen.peak_mib, seen.busy_percent) == (0, None)
