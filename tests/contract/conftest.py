"""The machine under test: the simulation, or with GPUSHARE_CONTRACT=real a real GPU.

The simulation needs UID 0, if only that of a user namespace: the MPS daemon takes -multiuser-server from root alone.
The real GPU needs root, an idle GPU, nvidia-cuda-mps-control on PATH and driver 580 (MPS v2); the thread counts are
those of a GPU with 132 SMs.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulation
from gpushare.api.compute_mode import ComputeMode
from gpushare.nvml.types import Nvml

REAL = os.environ.get("GPUSHARE_CONTRACT") == "real"
HERE = Path(__file__).parent
AS_USER = ("setpriv", "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--clear-groups")
SECONDS = 20.0
"""The time limit of an answer: long, because the machine may be busy."""


class Program:
    """A process with a GPU context. A call sends a verb; the answer is a dict, with `error` if CUDA refused."""

    def __init__(self, argv: list[str], environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def send(self, verb: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(verb + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        assert select.select([self.process.stdout], [], [], SECONDS)[0], "no answer"
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def __call__(self, verb: str) -> dict[str, Any]:
        self.send(verb)
        return self.answer()

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(SECONDS)

    def clean_up(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Machine:
    """One GPU, one directory for a daemon, and the programs on it."""

    def __init__(self, directory: Path, environ: dict[str, str], nvml: Nvml, control: str, client: list[str]) -> None:
        self.nvml = nvml
        self.gpu = nvml.gpus().infos[0]
        self.simulated = nvml.simulated
        self.directory = directory
        self.pipe = directory / "pipe"
        self.log = directory / "log"
        self.daemon_log = directory / "daemon.log"
        self.executable = control
        self._client = client
        plain = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        self.environ = {**plain, **environ, "CUDA_MPS_LOG_DIRECTORY": str(self.log)}
        self._started: list[Program] = []
        self._servers: set[int] = set()
        self.daemon: subprocess.Popen[str] | None = None

    def start_daemon(self, *options: str) -> subprocess.Popen[str]:
        environ = {**self.environ, "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_VISIBLE_DEVICES": self.gpu.uuid}
        self.pipe.mkdir(exist_ok=True)
        with self.daemon_log.open("a") as log:
            argv = [self.executable, "-f", *options]
            self.daemon = subprocess.Popen(argv, env=environ, stdout=log, stderr=log, text=True)
        socket = self.pipe / "control"  # each question is a program of its own, and the first ones would be in vain
        self.until(lambda: socket.exists() and self.control("get_server_list").returncode == 0)
        return self.daemon

    def control(self, *commands: str, pipe: Path | None = None, seconds: float = SECONDS, user: int = 0) -> Any:
        """Run the control program with `commands` on its standard input. Raises TimeoutExpired if it hangs.

        `user`: a UID that may read all files, but is not root for the daemon.
        """
        become = [*AS_USER, f"--reuid={user}"] if user else []
        environ = {**self.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe or self.pipe)}
        text = "".join(f"{command}\n" for command in commands)
        return subprocess.run(
            [*become, self.executable],
            env=environ,
            input=text,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def ask(self, *commands: str) -> str:
        return str(self.control(*commands).stdout).strip()

    def control_program(self, *arguments: str, **environ: str) -> Any:
        """Run the control program with arguments, on this machine's directories."""
        full = {**self.environ, "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), **environ}
        argv = [self.executable, *arguments]
        return subprocess.run(argv, env=full, capture_output=True, text=True, timeout=SECONDS, check=False)

    def server(self) -> int:
        """The PID of the ACTIVE server. Starts one if there is none."""
        self.control("start_server -uid 0")
        server = self.ask("get_server_list")
        self._servers.add(int(server))
        self.until(lambda: self.ask(f"get_server_status {server}") in ("ACTIVE", "FAULT"))
        return int(server)

    def program(self, pipe: Path | None = None, **environ: str) -> Program:
        """A program that has no context yet; `pipe` is the daemon that it looks for."""
        full = {**self.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe or self.pipe), **environ}
        self._started.append(Program(self._client, full))
        return self._started[-1]

    def client(self, **environ: str) -> Program:
        """A program with a context under MPS."""
        program = self.program(None, **environ)
        created = program("create")
        assert "error" not in created, created
        return program

    def non_mps(self) -> Program:
        """A program that does not find MPS and has no context yet."""
        return self.program(pipe=self.directory / "nowhere", CUDA_VISIBLE_DEVICES=self.gpu.uuid)

    def until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "waited too long"
            time.sleep(0.02)

    def clean_up(self) -> None:
        for program in self._started:
            program.clean_up()
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.kill()
        if self.daemon is not None:
            self.daemon.wait(SECONDS)
        for server in self._servers:
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)  # a stopped one does not notice that its daemon is gone
        self.until(lambda: not self.nvml.processes(self.gpu.uuid).compute)
        if self.nvml.compute_mode(self.gpu.uuid) is not ComputeMode.DEFAULT:
            self.nvml.set_compute_mode(self.gpu.uuid, ComputeMode.DEFAULT)


@pytest.fixture(scope="session")
def parts() -> Iterator[tuple[dict[str, str], Nvml, str, list[str]]]:
    """(environment, NVML, control program, client's command line) of the implementation under test."""
    if os.geteuid() != 0:
        pytest.skip("needs UID 0: run make unit, or put unshare --map-root-user --map-auto before pytest")
    yield from parts_under_test()


def parts_under_test() -> Iterator[tuple[dict[str, str], Nvml, str, list[str]]]:
    if REAL:
        from gpushare.nvml.real import PynvmlNvml

        control = shutil.which("nvidia-cuda-mps-control")
        assert control, "nvidia-cuda-mps-control is not on PATH"
        yield {}, PynvmlNvml(), control, [sys.executable, str(HERE / "cuda_client.py")]
        return
    yield from simulated_parts()


def simulated_parts(driver_version: str = "580.159.04") -> Iterator[tuple[dict[str, str], Nvml, str, list[str]]]:
    from gpushare.simulation.nvml import SimulatedNvml

    source = str(simulation.bin_dir().parents[2])
    with tempfile.TemporaryDirectory(prefix="gpushare-") as directory:
        argv = [sys.executable, "-m", "gpushare.cli.main", "simulated-driver", "--directory", directory]
        delays = ["--server-init-ms", "5", "--client-init-ms", "0", "--driver-version", driver_version]
        driver = subprocess.Popen([*argv, "--node", "contract", "--gpus", "2", *delays], stderr=subprocess.DEVNULL)
        try:
            socket = Path(directory) / "dev/nvidia1"
            end = time.monotonic() + 30
            while not socket.exists() and time.monotonic() < end:
                time.sleep(0.02)
            environ = {"GPUSHARE_SIMULATION_DIR": directory}
            client = [sys.executable, "-SEs", str(HERE / "simulated_client.py"), source]
            control = str(simulation.bin_dir() / "nvidia-cuda-mps-control")
            yield environ, SimulatedNvml(Path(directory)), control, client
        finally:
            driver.terminate()
            driver.wait(SECONDS)


@pytest.fixture
def idle(parts: tuple[dict[str, str], Nvml, str, list[str]]) -> Iterator[Machine]:
    """A machine whose daemon has not been started."""
    with tempfile.TemporaryDirectory(prefix="mps-") as directory:
        machine = Machine(Path(directory), *parts)
        yield machine
        machine.clean_up()


@pytest.fixture
def machine(idle: Machine) -> Machine:
    """A machine with a multi-user daemon and an ACTIVE server."""
    idle.start_daemon("-multiuser-server")
    idle.server()
    return idle
