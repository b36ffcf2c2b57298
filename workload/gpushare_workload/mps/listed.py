"""Whether processes share the GPU in the mode that is measured, by what NVML lists of them.

A CUDA program that cannot reach its MPS daemon silently runs without it, and NVML can be wrong for a moment: it lists
an MPS client as such only a while after the client has its context, and on a host with two H100s it listed a client of
another GPU's daemon among this GPU's. So what is wrong counts only if it lasts.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from gpushare.kubectl.rules.trial.cases import TrialMode
from gpushare_workload.gpus.monitor import ListedProcesses
from gpushare_workload.mps.modes import SharingMode

AGAIN_SECONDS = 1.0


def lasting(problem: Callable[[], str], wait: Callable[[float], object], seconds: float = AGAIN_SECONDS) -> str:
    """The second answer of `problem`, if the first is not empty. `wait`: sleeps between the two."""
    if not problem():
        return ""
    wait(seconds)
    return problem()


def wrong_client(mode: SharingMode, pids: Sequence[int], listed: ListedProcesses) -> str:
    """Which of our own clients, by its PID, is in another mode; empty if none is. Pure.

    PIDs that NVML does not list are ignored: in a container they differ from NVML's.
    """
    for pid in pids:
        if mode.under_mps and pid in listed.others:
            return f"{mode.value}: client PID {pid} is on the GPU without MPS"
        if mode is SharingMode.TIME_SLICING and pid in listed.mps_clients:
            return f"{mode.value}: client PID {pid} is a client of MPS"
    return ""


def wrong_copies(mode: TrialMode, listed: ListedProcesses) -> str:
    """Why copies of a program, whose own processes are not known, are in another mode; empty if they need not be.

    Pure. NVML lists the MPS server among the others.
    """
    if mode.under_mps and not listed.mps_clients and len(listed.others) > 1:
        return (
            f"{mode.value}: NVML lists {len(listed.others)} processes on the GPU and no MPS client: does the program "
            "set CUDA_MPS_PIPE_DIRECTORY or CUDA_VISIBLE_DEVICES itself?"
        )
    if not mode.under_mps and listed.mps_clients:
        pids = ", ".join(map(str, listed.mps_clients))
        return f"{mode.value}: PID {pids} is a client of an MPS daemon: does the program set CUDA_MPS_PIPE_DIRECTORY?"
    return ""


def parent_of(pid: int) -> int:
    """The PID of the parent; 0 for a process from outside of this PID namespace.

    OSError: the process is not known here, or has ended.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nPPid:")[2].split(maxsplit=1)[0])


def without_strangers(
    listed: ListedProcesses, own: Collection[int], parent: Callable[[int], int] = parent_of
) -> ListedProcesses:
    """The listed processes without the MPS clients that `own` did not start.

    On a host with four H200s, of which other programs used three under MPS, NVML listed clients of other GPUs so often
    that two looks were not enough. A PID that is not known here stays: in a container NVML may count as the host does.
    """

    def may_be_own(pid: int) -> bool:
        try:
            while pid > 1 and pid not in own:
                pid = parent(pid)
        except OSError:
            return True
        return pid in own

    clients = {pid: memory for pid, memory in listed.mps_clients.items() if may_be_own(pid)}
    return ListedProcesses(clients, listed.others)
