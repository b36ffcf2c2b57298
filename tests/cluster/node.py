"""Reaching into the embedded node: its processes by the PIDs that our own parts tell, its files."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from localcluster.cluster import processes
from localcluster.cluster.layout import Layout
from tests.cluster.harness import Harness, Share, wait_until


def signal_in_node(harness: Harness, pid: int, name: str) -> None:
    """`pid` is of the node's PID namespace; this machine knows the same process by another number."""
    _in_node(harness, f"kill -{name} {pid}")


def can_give(capability: int) -> bool:
    """Whether a container of this machine can have it. `capability`: its bit. A confined machine has not got all."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return bool(next(int(line.split()[1], 16) for line in lines if line.startswith("CapBnd")) & capability)


def kill_if_there(harness: Harness, pid: int) -> bool:
    """SIGKILL. Whether it hit a process: one that has just ended by itself is no error."""
    return _in_node(harness, f"kill -KILL {pid} 2>/dev/null && echo hit || true") == "hit\n"


def _in_node(harness: Harness, line: str) -> str:
    """What a line of bash in the node's PID namespace prints. CalledProcessError: it failed."""
    init = str(processes.init(harness.layout))
    command = ["nsenter", "--target", init, "--pid", "--mount", "bash", "-c", line]
    return subprocess.run(command, check=True, timeout=10, stdout=subprocess.PIPE, text=True).stdout


def daemon_of(harness: Harness, share: Share) -> dict[str, Any]:
    """state.json of the share's first daemon, as its supervisor wrote it."""
    files = [path / "state.json" for path in harness.gpu_dirs().values()]  # a GPU that is given whole has none
    states = [json.loads(file.read_text()) for file in files if file.exists()]
    daemon: dict[str, Any] = next(state for state in states if state["share"] == share.name)
    return daemon


def parent_of(harness: Harness, pid: int) -> int:
    """PIDs of the node; 0: the process has ended."""
    try:
        return int(harness.in_node(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def processes_of_pod(harness: Harness, uid: str, program: bytes) -> list[int]:
    """PIDs, in the node, of a pod's processes whose command line names `program`."""
    pids = []
    for entry in harness.in_node("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if uid in (entry / "cgroup").read_text() and program in (entry / "cmdline").read_bytes():
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids


def processes_of_part(harness: Harness, part: str) -> list[int]:
    """PIDs, in the node, of the processes that run `gpushare PART`, such as agent or mps-supervisor."""
    pids = []
    for entry in harness.in_node("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_text(errors="replace").split("\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if any(word.rpartition("/")[2] == "gpushare" and after == part for word, after in pairwise(words)):
            pids.append(int(entry.name))
    return pids


def restart_within(layout: Layout, period: str) -> str:
    """Containers that end are started again within `period`, such as 1s, which is the shortest that a kubelet takes.

    Returns what held before. The kubelet is replaced, so the node may be away for a moment.
    """
    path = layout.conf / "kubelet.yaml"
    configuration = json.loads(path.read_text())
    before = str(configuration["crashLoopBackOff"]["maxContainerRestartPeriod"])
    configuration["crashLoopBackOff"]["maxContainerRestartPeriod"] = period
    path.write_text(json.dumps(configuration, indent=1))
    processes.replace(layout, "kubelet", signal.SIGTERM)
    return before


@contextmanager
def without_agent(harness: Harness) -> Iterator[None]:
    """Nobody on the node: the agent's pods are sent away and come back afterwards."""
    away = '{"spec":{"template":{"spec":{"nodeSelector":{"no-such": "node"}}}}}'
    back = '{"spec":{"template":{"spec":{"nodeSelector":{"no-such": null}}}}}'
    selector = "--selector=app.kubernetes.io/component=agent"
    harness.system("patch", "daemonset", "gpushare-agent", "--patch", away)
    wait_until("the agent is gone", lambda: not harness.system.items("pods", selector), 60)
    try:
        yield
    finally:
        harness.system("patch", "daemonset", "gpushare-agent", "--patch", back)
        harness.wait_component("agent")
