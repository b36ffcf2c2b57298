"""What NVML shows of the GPU while copies run: utilisation, memory, and whether they share it in the mode measured."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.kubectl.rules.trial.cases import TrialMode
from gpushare_workload.gpus.monitor import GpuMonitor, ListedProcesses

EVERY_SECONDS = 0.2
AGAIN_SECONDS = 1.0


@dataclass
class GpuSampler:
    """Call `sample` often; it reads NVML every EVERY_SECONDS. `before_mib`: what the GPU's memory held before."""

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
        self._next = time.monotonic() + EVERY_SECONDS
        usage = self.monitor.usage()
        self.peak_mib = max(self.peak_mib, usage.memory_mib)
        if within_window and usage.busy_percent is not None:
            self.busy.append(usage.busy_percent)

    @property
    def memory_mib(self) -> int | None:
        """Of all copies, with what MPS needs for them; None if nothing was seen."""
        return max(0, self.peak_mib - self.before_mib) or None

    @property
    def busy_percent(self) -> float | None:
        return sum(self.busy) / len(self.busy) if self.busy else None


def wrong_mode(mode: TrialMode, found: ListedProcesses) -> str:
    """Why these copies do not share the GPU in this mode; empty if they may. Pure.

    A copy that cannot reach the MPS daemon silently runs without it. NVML lists the MPS server among the others.
    """
    if mode.under_mps and not found.mps_clients and len(found.others) > 1:
        return (
            f"{mode.value}: NVML lists {len(found.others)} processes on the GPU and no MPS client: does the program "
            "set CUDA_MPS_PIPE_DIRECTORY or CUDA_VISIBLE_DEVICES itself?"
        )
    if not mode.under_mps and found.mps_clients:
        pids = ", ".join(map(str, found.mps_clients))
        return f"{mode.value}: PID {pids} is a client of an MPS daemon: does the program set CUDA_MPS_PIPE_DIRECTORY?"
    return ""


def lasting_wrong_mode(mode: TrialMode, look: Callable[[], ListedProcesses], seconds: float = AGAIN_SECONDS) -> str:
    """`wrong_mode` of the second of two looks, if the first finds anything: NVML can list a client of another GPU's MPS
    daemon among this GPU's for a moment (seen on a host with two H100s).
    """
    if not wrong_mode(mode, look()):
        return ""
    time.sleep(seconds)
    return wrong_mode(mode, look())


def parent_of(pid: int) -> int:
    """0 for one from outside of this PID namespace. OSError: the process is not known here, or has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nPPid:")[2].split(maxsplit=1)[0])


def without_strangers(
    found: ListedProcesses, own: Collection[int], parent: Callable[[int], int] = parent_of
) -> ListedProcesses:
    """Leaves out the MPS clients that `own` did not start. On a host with four H200s, of which other programs used
    three under MPS, NVML listed clients of other GPUs so often that two looks were not enough. A PID that is not known
    here stays: in a container NVML may count as the host does.
    """

    def may_be_own(pid: int) -> bool:
        try:
            while pid > 1 and pid not in own:
                pid = parent(pid)
        except OSError:
            return True
        return pid in own

    clients = {pid: memory for pid, memory in found.mps_clients.items() if may_be_own(pid)}
    return ListedProcesses(clients, found.others)
