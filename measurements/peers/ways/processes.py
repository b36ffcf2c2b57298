"""Processes in the node by their programs' names, MPS' above all: what a way tells of itself is not needed."""

import os
import subprocess
from pathlib import Path

from localcluster.cluster import processes
from measurements.peers.ways.way import Daemon
from tests.cluster.harness import Harness

CONTROL, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
OPTIONS = 6
"""So many words of a command line may come before a script's name, its interpreter included."""


def daemon_in(harness: Harness) -> Daemon | None:
    """The program by which a command is sent has the daemon's name: the daemon is the older process."""
    control, server = pid_of(harness, CONTROL), pid_of(harness, SERVER)
    return Daemon(control, server) if control else None


def pid_of(harness: Harness, program: str) -> int | None:
    """Its PID in the node. An interpreter's script goes by the script's name: a rehearsal has such programs."""
    pids = []
    for entry in harness.in_node("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if program in {Path(word.decode(errors="replace")).name for word in words[:OPTIONS]}:
            pids.append(int(entry.name))
    return min(pids, default=None)


def start_in_node(harness: Harness, command: list[str], environment: dict[str, str]) -> None:
    """Starts a program in the node's namespaces and in a session of its own, so that it outlasts the call. Does not
    wait."""
    enter = ["nsenter", "--target", str(processes.init(harness.layout)), "--mount", "--net", "--pid", "--uts", "--ipc"]
    subprocess.Popen(
        [*enter, *command], env={**os.environ, **environment}, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
