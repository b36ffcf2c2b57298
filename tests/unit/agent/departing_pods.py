"""Pods as the API server shows them, and a /proc and a GPU where their processes run."""

from pathlib import Path
from typing import Any

from gpushare.mps.control import ControlTimeoutError, NoDaemonError, RefusedError
from gpushare.nvml.types import GpuLostError, GpuProcess, GpuProcesses

CONTAINER = "ab" * 32


def uid(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012d}"


def pod(number: int = 1, *, grace: float | None = None, deleted_at: str = "2026-01-01T00:00:30Z", **status: Any) -> Any:
    """A pod with one slot. `grace` None: it is not deleted."""
    metadata: dict[str, Any] = {"name": f"pod-{number}", "namespace": "team", "uid": uid(number)}
    if grace is not None:
        metadata |= {"deletionTimestamp": deleted_at, "deletionGracePeriodSeconds": grace}
    containers = [{"name": "app", "resources": {"limits": {"gpushare.dev/inference": "1"}}}]
    running = [{"name": "app", "containerID": f"containerd://{CONTAINER}", "state": {"running": {}}}]
    return {
        "metadata": metadata,
        "spec": {"containers": containers},
        "status": {"phase": "Running", "containerStatuses": running, **status},
    }


class Node:
    """One GPU's clients: NVML, /proc and the MPS control program agree, until a test says otherwise."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.listed: dict[str, list[int]] = {"GPU-0": []}
        self.pods: dict[str, Any] = {}
        self.ended: list[int] = []
        self.refused: set[int] = set()
        self.absent = False
        self.wedged = False
        self.answer_lost = False
        self.lost: set[str] = set()
        self.true: dict[int, int] = {}
        """The PID of a client, which NVML shows, by the one that it sent to the MPS server."""
        self.servers = [500]
        self.asked = 0
        self.stays_listed = False
        self.before_end: Any = lambda: None

    def client(
        self,
        pid: int,
        number: int,
        *,
        catches: bool = False,
        started: int = 100,
        gpu: str = "GPU-0",
        container: str = CONTAINER,
        parent: int = 0,
    ) -> None:
        self.process(pid, started)
        directory = self.proc / str(pid)
        (directory / "status").write_text(f"PPid:\t{parent}\nSigCgt:\t{0x4000 if catches else 0:016x}\n")
        (directory / "cgroup").write_text(f"0::/kubepods/burstable/pod{uid(number)}/{container}\n")
        if pid not in self.listed.setdefault(gpu, []):
            self.listed[gpu].append(pid)

    def process(self, pid: int, started: int) -> None:
        directory = self.proc / str(pid)
        directory.mkdir(exist_ok=True)
        (directory / "stat").write_text(f"{pid} (python) S " + " ".join(["0"] * 18 + [str(started), "0"]))

    def processes(self, gpu: str) -> GpuProcesses:
        self.asked += 1
        if gpu in self.lost:
            raise GpuLostError("GPU is lost")
        clients = tuple(GpuProcess(self.true.get(pid, pid), 100) for pid in self.listed[gpu])
        return GpuProcesses(clients, (GpuProcess(500, 66),))

    def control(self, gpu: str) -> "Control":
        return Control(self, gpu)


class Control:
    def __init__(self, node: Node, gpu: str) -> None:
        self._node = node
        self._gpu = gpu

    def sound_servers(self) -> list[int]:
        self._node.before_end()
        if self._node.wedged:
            raise ControlTimeoutError("no answer within 5 s")
        if self._node.absent:
            raise NoDaemonError("no MPS control daemon serves pipe")
        return self._node.servers

    def server_list(self) -> list[int]:
        return self.sound_servers()

    def clients(self, server: int) -> list[int]:
        return self._node.listed[self._gpu]

    def terminate_client(self, server: int, pid: int) -> bool:
        if pid in self._node.refused:
            raise RefusedError("terminate_client", "Invalid process!")
        if server != self._node.servers[-1] or pid not in self._node.listed[self._gpu]:
            return False
        self._node.ended.append(pid)
        if self._node.answer_lost:
            raise ControlTimeoutError("no answer within 5 s")
        if not self._node.stays_listed:
            self._node.listed[self._gpu].remove(pid)
        return True
