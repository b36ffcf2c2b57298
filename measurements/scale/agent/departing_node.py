"""One agent on a node that is a few lines, and the seconds from a pod's deletion to its client's `terminate_client`.

Run by `departures.py`, with the product and the unit tests' fake node of one commit. NVML, kubelet and API answer from
memory; a command of a GPU's MPS daemon takes COMMAND_SECONDS, about what a run of NVIDIA's control program takes. The
agent's loops are all there, with the short intervals of the unit tests.
"""

import asyncio
import contextlib
import importlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from gpushare.api import names
from gpushare.grant.environment import client_environment
from gpushare.grant.model import Grant
from gpushare.kube.client import GPU_SHARES, PODS
from gpushare.mps.control import ControlTimeoutError
from gpushare.nvml.types import GpuProcess

# Of the tree that is measured, so they are not checked together with this one.
FakeNvml: Any = importlib.import_module("tests.unit.agent.conftest").FakeNvml
FakeNode: Any = importlib.import_module("tests.unit.agent.fake_node").FakeNode
pods: Any = importlib.import_module("tests.unit.agent.departing_pods")

COMMAND_SECONDS = 0.02
HUNG_SECONDS = 5.0
"""The time after which a command that is not answered is given up, as in the product."""
DEPARTING = 4
OTHERS = 40
"""Clients that another reason ends."""
SPREAD_SECONDS = 0.5
"""A deletion comes at any moment of so long."""
SHARE = {
    "metadata": {"name": "inference", "uid": "s"},
    "spec": {
        "enforcement": "Terminate",
        "clients": {"perGpu": 48, "threads": {"default": 1, "max": 50}, "memory": {"default": "1Gi"}},
    },
}
GRANT = Grant("inference", 1, 1024, 2)


class SlowDaemon:
    """The control program of every GPU. `asked`: when each client was asked for, by PID."""

    def __init__(self, nvml: Any) -> None:
        self.asked: dict[int, float] = {}
        self.hung = False
        """GPU-1's daemon answers nothing."""
        self._nvml = nvml

    def sound_servers(self) -> list[int]:
        time.sleep(2 * COMMAND_SECONDS)
        return [1000]

    def server_list(self) -> list[int]:
        time.sleep(COMMAND_SECONDS)
        return [1000]

    def clients(self, server: int) -> list[int]:
        time.sleep(COMMAND_SECONDS)
        return [process.pid for listed in self._nvml.clients.values() for process in listed]

    def terminate_client(self, server: int, pid: int) -> bool:
        self.asked[pid] = time.monotonic()
        gpu = next(
            (gpu for gpu, listed in self._nvml.clients.items() if any(process.pid == pid for process in listed)), ""
        )
        if self.hung and gpu == "GPU-1":
            time.sleep(HUNG_SECONDS)
            raise ControlTimeoutError("no answer")
        time.sleep(COMMAND_SECONDS)
        self._nvml.clients[gpu] = [process for process in self._nvml.clients.get(gpu, ()) if process.pid != pid]
        return bool(gpu)


class Stand:
    """The node, its pods and their clients."""

    def __init__(self, directory: Path) -> None:
        self.nvml = FakeNvml()
        self.node = FakeNode(directory, self.nvml)
        self.daemon = self.node.daemons = SlowDaemon(self.nvml)
        self.node.kube.put(GPU_SHARES, SHARE)
        self.last = 0

    async def ready(self) -> None:
        await self.node.until(lambda: self.node.status().get("gpus"), 60)
        self.assign()
        await self.node.until(lambda: len(self.node.kubelet.ids("inference")) == 96, 60)

    def assign(self, **fields: Any) -> None:
        """`fields`: of GPU-0's assignment."""
        first, second = ({"uuid": f"GPU-{index}", "share": "inference"} for index in (0, 1))
        self.node.kube.assign(first | fields, second)

    def client(self, gpu: str = "GPU-0", memory_mib: int = 100) -> int:
        """A pod with a client; returns its number, and its PID is 10000 more."""
        self.last += 1
        number, pid = self.last, 10000 + self.last
        directory = self.node.proc / str(pid)
        directory.mkdir()
        (directory / "stat").write_text(f"{pid} (python) S " + " ".join(["0"] * 18 + ["100", "0"]))
        (directory / "status").write_text("PPid:\t0\nSigCgt:\t0000000000000000\n")
        (directory / "cgroup").write_text(f"0::/kubepods/burstable/pod{pods.uid(number)}/{number:064x}\n")
        (directory / "mountinfo").write_text(f"36 22 0:31 / {names.CLIENT_PIPE_DIR} ro - tmpfs tmpfs rw\n")
        self.show(number)
        self.nvml.clients.setdefault(gpu, []).append(GpuProcess(pid, memory_mib))
        return number

    def show(self, number: int, grace: float | None = None) -> None:
        shown = pods.pod(number, grace=grace)
        shown["metadata"]["finalizers"] = ["example.com/kubelet"]  # it stays in the API while it departs
        shown["spec"]["containers"][0]["env"] = [
            {"name": key, "value": value} for key, value in client_environment(GRANT, None).items()
        ]
        shown["status"]["containerStatuses"][0]["containerID"] = f"containerd://{number:064x}"
        self.node.kube.put(PODS, shown)

    async def delete(self, number: int) -> float:
        """Milliseconds until its client is asked for."""
        began = time.monotonic()
        self.show(number, grace=30)
        await self.node.until(lambda: 10000 + number in self.daemon.asked, 60)
        return 1000 * (self.daemon.asked[10000 + number] - began)

    async def any_asked(self, numbers: list[int]) -> None:
        """The daemon was asked for a client of one of these pods."""
        await self.node.until(lambda: any(10000 + number in self.daemon.asked for number in numbers), 60)

    async def clear(self) -> None:
        """No pod and no client is left."""
        for gpu in ("GPU-0", "GPU-1"):
            self.nvml.clients[gpu] = []
        for number in range(1, self.last + 1):
            with contextlib.suppress(KeyError):
                self.node.kube.remove(PODS, f"pod-{number}", "team")
        await asyncio.sleep(1.0)


async def depart(stand: Stand, numbers: list[int]) -> list[float]:
    """Each pod is deleted at a moment of its own within SPREAD_SECONDS."""

    async def later(number: int) -> float:
        await asyncio.sleep(SPREAD_SECONDS * random.random())
        return await stand.delete(number)

    return list(await asyncio.gather(*(later(number) for number in numbers)))


async def alone(stand: Stand) -> list[float]:
    """One after the other."""
    numbers = [stand.client() for _ in range(DEPARTING)]
    return [taken for number in numbers for taken in await depart(stand, [number])]


async def together(stand: Stand) -> list[float]:
    return await depart(stand, [stand.client() for _ in range(DEPARTING)])


async def beside_max_wait(stand: Stand) -> list[float]:
    """All clients of the GPU are being ended for a change; the departing ones are the last that NVML lists."""
    others = [stand.client() for _ in range(OTHERS)]
    numbers = [stand.client() for _ in range(DEPARTING)]
    await asyncio.sleep(0.5)
    stand.assign(draining=True, terminateClients=True)
    await stand.any_asked(others)
    taken = await depart(stand, numbers)
    stand.assign()
    return taken


async def beside_violations(stand: Stand) -> list[float]:
    others = [stand.client(memory_mib=3000) for _ in range(OTHERS)]
    numbers = [stand.client() for _ in range(DEPARTING)]
    await stand.any_asked(others)
    return await depart(stand, numbers)


async def beside_a_hung_gpu(stand: Stand) -> list[float]:
    """The other GPU's daemon answers nothing, and a pod departs there too."""
    hanging, numbers = stand.client("GPU-1"), [stand.client() for _ in range(DEPARTING)]
    stand.daemon.hung = True
    stand.show(hanging, grace=30)
    await stand.any_asked([hanging])
    taken = await depart(stand, numbers)
    stand.daemon.hung = False
    return taken


WAYS: dict[str, Callable[[Stand], Awaitable[list[float]]]] = {
    "alone": alone,
    "together": together,
    "besideMaxWait": beside_max_wait,
    "besideViolations": beside_violations,
    "besideHungGpu": beside_a_hung_gpu,
}


async def measure(repeats: int, directory: Path) -> dict[str, list[float]]:
    """Milliseconds of each deletion, by way."""
    stand = Stand(directory)
    mps = asyncio.create_task(stand.node.mps())
    stand.node.start()
    try:
        await stand.ready()
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(repeats):
            for way, take in WAYS.items():
                times[way] += await take(stand)
                await stand.clear()
        return times
    finally:
        await stand.node.stop()
        mps.cancel()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(asyncio.run(measure(int(sys.argv[1]), Path(directory)))))


if __name__ == "__main__":
    main()
