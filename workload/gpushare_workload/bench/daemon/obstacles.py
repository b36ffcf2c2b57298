"""The reasons why a benchmark may not use a GPU alone.

Pure: one sentence for each reason, naming what holds the GPU.
"""

from collections.abc import Mapping
from pathlib import Path

from gpushare_workload.gpus.monitor import ListedProcesses

SHARES = Path("/run/gpushare")
"""gpushare's agent has a directory here for each GPU of a share."""
SOCKET_PATH_BYTES = 107
"""Longest path of a unix socket on Linux (unix(7), sun_path)."""
PROGRAM = "nvidia-cuda-mps-control"


def of_gpu(
    uuid: str, share_directory: Path | None, processes: ListedProcesses, names: Mapping[int, str], compute_mode: str
) -> list[str]:
    """Why this GPU is not free. `share_directory`: gpushare's directory of the GPU, if it exists."""
    found = []
    if share_directory is not None:
        found.append(f"a share of gpushare holds {uuid} ({share_directory} exists)")
    for kind, held in (("an MPS client", processes.mps_clients), ("a process", processes.others)):
        for pid, mib in held.items():
            found.append(f"{kind} is on {uuid}: PID {pid} ({names.get(pid, 'of another PID namespace')}, {mib} MiB)")
    if compute_mode != "Default":
        found.append(f"the compute mode of {uuid} is {compute_mode}: somebody set it (nvidia-smi -c DEFAULT undoes it)")
    return found


def of_machine(program: str | None, socket: Path, exclusive: bool, root: bool) -> list[str]:
    """Why no daemon can be started here. `socket` is the longest path among its sockets."""
    found = []
    if program is None:
        found.append(
            f"{PROGRAM} is not on PATH: it comes with NVIDIA's driver (in a container, with the driver capability "
            "`compute`)"
        )
    if len(str(socket)) > SOCKET_PATH_BYTES:
        found.append(
            f"the path {socket} has {len(str(socket))} bytes, a socket's path at most {SOCKET_PATH_BYTES}: "
            "set TMPDIR to a shorter one"
        )
    if exclusive and not root:
        found.append("--exclusive changes the compute mode, which needs root")
    return found
