"""The reasons why a measurement may not have a GPU to itself: one sentence for each, naming what holds the GPU."""

import socket
from collections.abc import Mapping
from pathlib import Path

from gpushare.mps.control import PROGRAM
from gpushare_workload.gpus.monitor import ListedProcesses
from gpushare_workload.mps.modes import reachable_daemon

SHARES = Path("/run/gpushare")
"""The agent of gpushare has a directory here for each GPU of a share."""
SOCKET_PATH_BYTES = 107
"""Longest path of a unix socket on Linux (unix(7), sun_path)."""
CONNECT_SECONDS = 2.0


def of_gpu(
    uuid: str, share_directory: Path | None, processes: ListedProcesses, names: Mapping[int, str], compute_mode: str
) -> list[str]:
    """Why this GPU is not free. Pure. `share_directory`: gpushare's directory of the GPU, if it exists."""
    reasons = []
    if share_directory is not None:
        reasons.append(f"a share of gpushare holds {uuid} ({share_directory} exists)")
    for kind, held in (("an MPS client", processes.mps_clients), ("a process", processes.others)):
        for pid, mib in held.items():
            name = names.get(pid, "of another PID namespace")
            reasons.append(f"{kind} is on {uuid}: PID {pid} ({name}, {mib} MiB)")
    if compute_mode != "Default":
        reasons.append(
            f"the compute mode of {uuid} is {compute_mode}: somebody set it (nvidia-smi -c DEFAULT undoes it)"
        )
    return reasons


def of_machine(program: str | None, socket_path: Path, exclusive: bool, root: bool) -> list[str]:
    """Why no daemon can be started here. Pure. `socket_path` is the longest among its sockets."""
    reasons = []
    if program is None:
        reasons.append(
            f"{PROGRAM} is not on PATH: it comes with NVIDIA's driver (in a container, with the driver capability "
            "`compute`)"
        )
    if len(str(socket_path)) > SOCKET_PATH_BYTES:
        reasons.append(
            f"the path {socket_path} has {len(str(socket_path))} bytes, a socket's path at most {SOCKET_PATH_BYTES}: "
            "set TMPDIR to a shorter one"
        )
    if exclusive and not root:
        reasons.append("--exclusive changes the compute mode, which needs root")
    return reasons


def other_daemon(variables: Mapping[str, str]) -> str | None:
    """A sentence about the MPS daemon that programs of this environment would reach by default; None without one."""
    directory = reachable_daemon(variables)
    if directory is None:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_SECONDS)
        try:
            probe.connect(str(directory / "control"))
        except ConnectionRefusedError:  # no process serves it any more
            return None
        except OSError:  # a process serves a socket of another type or owner
            pass
    return (
        f"an MPS daemon runs already, at {directory}: end it (echo quit | nvidia-cuda-mps-control), or measure "
        "in a share with `kubectl gpushare trial`"
    )
