"""How busy the whole GPU was, and how much of its memory was in use, while something ran.

NVML knows the utilisation of a GPU, and under MPS not that of a client (measured). It is the part of a sample period in
which any kernel ran, which says nothing about how much of the GPU the kernel filled.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Thread
from types import TracebackType

from gpushare_workload.gpus.inventory import open_monitor
from gpushare_workload.gpus.monitor import SETTLED_SECONDS, GpuMonitor, GpuMonitorError, GpuUsage

EVERY_SECONDS = 0.1
SAMPLE_SECONDS = 0.2
LEAVE_SECONDS = 2.0
"""Longest wait for a reading under way: an NVML that hangs is no figure, and holds nobody up."""


@dataclass
class Utilisation:
    """What was seen since `began`, in seconds as the `now` of each sample."""

    began: float
    busy: list[float] = field(default_factory=list)
    peak_mib: int | None = None
    """None: nothing was seen."""

    def add(self, usage: GpuUsage, now: float) -> None:
        self.peak_mib = max(self.peak_mib or 0, usage.memory_mib)
        if usage.busy_percent is not None and now - self.began >= SETTLED_SECONDS:
            self.busy.append(usage.busy_percent)

    @property
    def busy_percent(self) -> float | None:
        """The mean, to a tenth; None for a time that was too short, or where NVML does not report it."""
        return round(sum(self.busy) / len(self.busy), 1) if self.busy else None


@dataclass
class GpuSampler:
    """What was seen of one monitor without a thread: call `sample` often, which reads NVML every SAMPLE_SECONDS.

    `before_mib`: what the GPU's memory held before. Unlike GpuWatch it raises GpuMonitorError.
    """

    monitor: GpuMonitor
    before_mib: int
    peak_mib: int = 0
    busy: list[float] = field(default_factory=list)
    _next: float = 0.0

    @classmethod
    def of(cls, monitor: GpuMonitor) -> "GpuSampler":
        return cls(monitor, monitor.usage().memory_mib)

    def sample(self, within_window: bool) -> None:
        """Memory counts at any time, utilisation only within the window."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SAMPLE_SECONDS
        usage = self.monitor.usage()
        self.peak_mib = max(self.peak_mib, usage.memory_mib)
        if within_window and usage.busy_percent is not None:
            self.busy.append(usage.busy_percent)

    @property
    def memory_mib(self) -> int | None:
        """MiB of all processes since, with what MPS needs for them; None if nothing was seen."""
        return max(0, self.peak_mib - self.before_mib) or None

    @property
    def busy_percent(self) -> float | None:
        """The mean within the window; None where NVML does not report it."""
        return sum(self.busy) / len(self.busy) if self.busy else None


class GpuWatch:
    """Watches the first visible GPU from a thread: `with watch as seen`, any number of times.

    Make it before the work begins, since to open NVML takes a moment, and take the times of the work within the `with`.
    Without NVML nothing is seen, and nothing fails.
    """

    def __init__(self, open_monitor: Callable[[], GpuMonitor | None] = open_monitor) -> None:
        try:
            self._monitor = open_monitor()
        except GpuMonitorError:
            self._monitor = None
        self._ended = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> Utilisation:
        seen, self._ended = Utilisation(time.monotonic()), Event()
        if self._monitor is not None:
            arguments = (self._monitor, seen, self._ended)
            self._thread = Thread(target=_watch, args=arguments, name="utilisation", daemon=True)
            self._thread.start()
        return seen

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(LEAVE_SECONDS)


def _watch(monitor: GpuMonitor, seen: Utilisation, ended: Event) -> None:
    try:
        while True:
            seen.add(monitor.usage(), time.monotonic())
            if ended.wait(EVERY_SECONDS):
                return
    except GpuMonitorError:
        return
