"""Departure on the simulated GPU: real processes, a real kill in the middle of a kernel, and their neighbours."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulation
from gpushare.agent.terminate.departure_guard import DepartureGuard
from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.kube.events.event import Event
from gpushare.mps.control import ControlProgram
from gpushare.simulation.nvml import SimulatedNvml
from tests.unit.agent.departing_pods import CONTAINER, pod, uid
from tests.unit.simulation.conftest import SECONDS, start_driver

NEIGHBOURS = 3
CLIENT = """
import sys, time
from gpushare.simulation.client import CudaError, SimulatedContext
context, kernel = SimulatedContext.create(), float(sys.argv[1])
context.launch(kernel)
print("up", flush=True)
try:
    while True:
        context.synchronize()
        launched = time.monotonic()
        context.launch(kernel)
        print("launched", launched, flush=True)
except CudaError as error:
    print(error.code, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def gpu() -> Iterator[Path]:
    """A simulated driver with one GPU and its MPS daemon; the directory holds both."""
    with tempfile.TemporaryDirectory(prefix="sim-") as base:
        directory = Path(base)
        driver = start_driver(directory, gpus=1)
        control = simulation.bin_dir() / "nvidia-cuda-mps-control"
        environment = client_environment(directory)
        daemon = subprocess.Popen([control, "-f"], stderr=subprocess.DEVNULL, env=environment)
        until(lambda: subprocess.run([control], input=b"", capture_output=True, env=environment).returncode == 0)
        yield directory
        daemon.kill()
        daemon.wait(SECONDS)
        driver.terminate()
        driver.wait(SECONDS)


class Clients:
    """Real client processes, each with a /proc entry that puts it into a pod of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.proc = directory / "proc"
        self.proc.mkdir()
        self.running: list[subprocess.Popen[str]] = []

    def start(self, kernel_milliseconds: float) -> int:
        """Returns the pod's number, from 0."""
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(kernel_milliseconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=client_environment(self.directory),
        )
        number = len(self.running)
        self.running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        entry = self.proc / str(process.pid)
        entry.mkdir()
        for name in ("stat", "status"):
            (entry / name).symlink_to(f"/proc/{process.pid}/{name}")
        (entry / "cgroup").write_text(f"0::/kubepods/burstable/pod{uid(number)}/{CONTAINER}\n")
        return number

    def kill(self, number: int) -> None:
        self.running[number].kill()
        self.running[number].wait(SECONDS)

    def failures(self, numbers: range, kernels: int = 20) -> list[str]:
        """What the clients of these pods run into within so many kernels from now on."""
        now = time.monotonic()
        return [code for number in numbers if (code := self._failure(number, now, kernels))]

    def _failure(self, number: int, now: float, kernels: int) -> str:
        stdout = self.running[number].stdout
        assert stdout is not None
        for line in stdout:
            word, _, launched = line.strip().partition(" ")
            if word != "launched":
                return word
            kernels -= float(launched) > now
            if kernels < 0:
                return ""
        return "it has ended"

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()


@pytest.fixture
def clients(gpu: Path) -> Iterator[Clients]:
    """One with kernels much longer than any test, pod 0, and neighbours with short ones."""
    clients = Clients(gpu)
    clients.start(60_000)
    for _ in range(NEIGHBOURS):
        clients.start(5)
    yield clients
    clients.close()


async def test_neighbours_of_a_client_ended_in_mid_kernel_go_on(gpu: Path, clients: Clients) -> None:
    nvml = SimulatedNvml(gpu)
    uuids = [info.uuid for info in nvml.gpus().infos]
    pods: dict[str, Any] = {uid(number): pod(number) for number in range(NEIGHBOURS + 1)}
    recorded: asyncio.Queue[Event] = asyncio.Queue()
    control = ControlProgram(simulation.bin_dir(), gpu / "pipe", gpu / "log")
    executor = TerminationExecutor(gpu, lambda _: control, recorded.put_nowait, proc=clients.proc)
    guard = DepartureGuard(nvml, lambda: pods, lambda: uuids, executor, proc=clients.proc)
    running = asyncio.create_task(guard.run())
    pods[uid(0)] = pod(0, grace=30)
    guard.pods_changed()
    async with asyncio.timeout(SECONDS):
        event = await recorded.get()
    await asyncio.to_thread(clients.kill, 0)
    assert await asyncio.to_thread(clients.failures, range(1, NEIGHBOURS + 1)) == []
    assert event.regarding["name"] == "pod-0"
    assert recorded.empty()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    nvml.close()


def test_the_same_kill_without_us_takes_every_neighbour_with_it(clients: Clients) -> None:
    clients.kill(0)
    assert clients.failures(range(1, NEIGHBOURS + 1), kernels=10_000) == ["700"] * NEIGHBOURS


def client_environment(directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        "GPUSHARE_SIMULATION_DIR": str(directory),
        "CUDA_MPS_PIPE_DIRECTORY": str(directory / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(directory / "log"),
    }


def until(met: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not met():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)
