"""A private MPS daemon on a GPU that nobody uses, and programs of the workload, with or without it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

from gpushare.mps.control import ControlProgram

THREADS, MEMORY_MIB = 25, 4096
READY_SECONDS = 90.0
END_SECONDS = 30.0
Events = list[dict[str, Any]]


class Program:
    """One process of the workload. A thread reads its output at once, so that it never waits for us."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "gpushare_workload.cli", "run", *arguments]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.events: Events = []
        self._told: Queue[str] = Queue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._told.put(line)
        self._told.put("")

    def wait_for(self, event: str, seconds: float = READY_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not (self.events and self.events[-1]["event"] == event):
            try:
                line = self._told.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                line = ""
            if not line:
                raise RuntimeError(f"no {event} from process {self.pid}: {self.events}")
            self.events.append(json.loads(line))

    def end(self, seconds: float = END_SECONDS) -> dict[str, Any]:
        """Its output, once it has ended. After `seconds` it gets SIGTERM, and then SIGKILL."""
        for hurry in (self.process.terminate, self.process.kill):
            try:
                self.process.wait(seconds)
                break
            except subprocess.TimeoutExpired:
                hurry()
                seconds = END_SECONDS
        self.process.wait(seconds)
        self._reader.join(seconds)
        while not self._told.empty() and (line := self._told.get()):
            self.events.append(json.loads(line))
        return {"exit_code": self.process.returncode, "events": self.events}

    def terminate(self) -> dict[str, Any]:
        """Like `end`, after SIGTERM; also returns the seconds from SIGTERM to the end."""
        began = time.monotonic()
        self.process.terminate()
        ended = self.end()
        return ended | {"seconds_to_end": round(time.monotonic() - began, 3)}


def without_mps(*arguments: str) -> Program:
    """A program that finds no daemon: several of its processes share the GPU in time slices."""
    return Program(arguments, dict(os.environ, CUDA_MPS_PIPE_DIRECTORY="/nowhere"))


class PrivateMps:
    """A daemon whose default limits are above the grants of its clients. Ends all processes that it started."""

    def __init__(self, directory: Path, threads: int = 2 * THREADS, memory_mib: int = 2 * MEMORY_MIB) -> None:
        """`threads`, in percent, and `memory_mib`: the ceiling of each client."""
        self._ceiling = threads, memory_mib
        self.pipe, self.log = directory / "pipe", directory / "log"
        for path in (self.pipe, self.log):
            path.mkdir()
        self.environment = dict(
            os.environ,
            # One daemon is one GPU here, as in gpushare; a client counts within its daemon's.
            CUDA_VISIBLE_DEVICES="0",
            CUDA_MPS_PIPE_DIRECTORY=str(self.pipe),
            CUDA_MPS_LOG_DIRECTORY=str(self.log),
        )
        self.control = ControlProgram(None, self.pipe, self.log, 10)
        self._started: list[Program] = []

    def __enter__(self) -> "PrivateMps":
        command = ["nvidia-cuda-mps-control", "-d", "-multiuser-server"]
        subprocess.run(command, env=self.environment, check=True, timeout=30)
        threads, memory_mib = self._ceiling
        self.control.set_default_memory(memory_mib)
        self.control.set_default_threads(threads)
        self.control.start_server()
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._started:
            if program.process.poll() is None:
                program.terminate()
        self.control.quit(3)

    def granted(self, threads: int = THREADS, told: int | None = None) -> dict[str, str]:
        """The environment of a client. `told`: the value of GPUSHARE_THREADS, if it has to differ from the limit."""
        return self.environment | {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(threads),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={MEMORY_MIB}M",
            "GPUSHARE_SHARE": "bench",
            "GPUSHARE_THREADS": str(told or threads),
            "GPUSHARE_MEMORY_BYTES": str(MEMORY_MIB << 20),
        }

    def start(self, *arguments: str, environment: dict[str, str] | None = None) -> Program:
        self._started.append(Program(arguments, environment or self.granted()))
        return self._started[-1]
