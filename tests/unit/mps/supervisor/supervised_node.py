"""Simulated GPUs with the agent's part of their supervision, and clients: for tests with a real supervisor."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare.api.compute_mode import ComputeMode
from gpushare.mps.control import ControlProgram
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import GpuDir, gpu_dir
from gpushare.mps.wire import DaemonLimits, DaemonState, DesiredDaemon
from gpushare.nvml.types import NvmlError
from gpushare.simulation import bin_dir
from gpushare.simulation.nvml import SimulatedNvml

LIMITS = DaemonLimits(threads=50, memory_mib=16385)
SECONDS = 60.0
CLIENT = """
import sys, time
from gpushare.simulation.client import SimulatedContext
context = SimulatedContext.create()
print(context.sms_enforced, context.mem_get_info()[0] // 2**20, context.under_mps, flush=True)
for line in sys.stdin:
    context.fault("illegal_address")
    time.sleep(0.1)
    break
"""


def until(condition: Callable[[], object], what: Callable[[], object]) -> None:
    """`what`: called after the time limit, to describe the last state."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"not within {SECONDS} s: {what()}"
        time.sleep(0.02)


class Node:
    """Two simulated GPUs in EXCLUSIVE_PROCESS, and the agent's part of their supervision."""

    def __init__(self, base: Path, root: Path) -> None:
        self.base = base
        self.root = root
        self.nvml = SimulatedNvml(base)
        self.dirs = [gpu_dir(root, info.uuid) for info in self.nvml.gpus().infos]
        self.clients: list[subprocess.Popen[str]] = []
        for gpu in self.dirs:
            self.nvml.set_compute_mode(gpu.uuid, ComputeMode.EXCLUSIVE_PROCESS)
            gpu.client.mkdir(parents=True)

    def request(self, gpu: GpuDir, limits: DaemonLimits = LIMITS, share: str = "inference", stop: bool = False) -> None:
        write_model(gpu.wanted, DesiredDaemon(uuid=gpu.uuid, share=share, limits=limits, stop=stop))

    def state(self, gpu: GpuDir) -> DaemonState:
        state = read_model(gpu.state, DaemonState).value
        assert state is not None
        return state

    def until(self, gpu: GpuDir, condition: Callable[[DaemonState], object]) -> DaemonState:
        def holds() -> object:
            state = read_model(gpu.state, DaemonState).value
            return state is not None and condition(state)

        until(holds, lambda: read_model(gpu.state, DaemonState))
        return self.state(gpu)

    def ready(self, gpu: GpuDir) -> DaemonState:
        return self.until(gpu, lambda state: state.ready)

    def observe_again(self, gpu: GpuDir, times: int = 3) -> None:
        """Wait until the supervisor has observed the GPU so often, and reported it."""
        for _ in range(times):
            before = self.state(gpu).heartbeat
            self.until(gpu, lambda state, before=before: state.heartbeat > before)

    def client(self, gpu: GpuDir, pipe: Path | None = None, **environ: str) -> tuple[subprocess.Popen[str], list[str]]:
        """A client that sees client/ or `pipe` alone, as in a container, and its output: SMs, free MiB, whether under
        MPS.
        """
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            env={**os.environ, **environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe or gpu.client)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.clients.append(client)
        assert client.stdout is not None
        return client, client.stdout.readline().split()

    def control(self, gpu: GpuDir) -> ControlProgram:
        return ControlProgram(bin_dir(), gpu.pipe, gpu.log)


@contextmanager
def simulated_driver(version: str = "580.159.04") -> Iterator[Path]:
    """The directory of a simulated driver with two GPUs. It is short, because socket paths have to be."""
    with tempfile.TemporaryDirectory(prefix="gs", dir="/tmp") as directory:
        arguments = ["--directory", directory, "--gpus", "2", "--node", "unit", "--client-init-ms", "5"]
        arguments += ["--driver-version", version]
        process = subprocess.Popen([sys.executable, "-m", "gpushare.cli.main", "simulated-driver", *arguments])
        nvml = SimulatedNvml(Path(directory))

        def answers() -> bool:
            try:
                return len(nvml.gpus().infos) == 2
            except NvmlError:
                return False

        until(answers, lambda: "no answer of the simulated driver")
        yield Path(directory)
        process.terminate()
        process.wait(5)
