"""A control daemon of the benchmark's own, so that one machine shows time-slicing and MPS one after the other.

Guarantees: it serves a private directory (never CUDA's default one, which other programs and the container toolkit
look into); it is started only on a GPU that nobody uses; its limits are read back; whatever happens to the benchmark
short of SIGKILL, daemon, directory and compute mode are as before afterwards, and after SIGKILL the next benchmark
sees to it. It runs only while MPS is measured, so that nothing of it is on the GPU while time-slicing is.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare.simulation import bin_dir
from gpushare_workload.bench import control, home, obstacles, processes
from gpushare_workload.bench.control import DaemonError
from gpushare_workload.bench.gpu import VISIBLE, GpuView
from gpushare_workload.bench.home import Home

START_SECONDS = 30.0
PID_FILE_SECONDS = 5.0
END_SECONDS = 10.0
ENDING_SECONDS = 3.0
"""A process that is just ending does not use the GPU: how long NVML may still list it."""
LOG_CHARACTERS = 500


class OwnDaemon:
    """Made by `prepared`. One pass at a time."""

    def __init__(self, view: GpuView, program: str, place: Home, exclusive: bool) -> None:
        self._view, self._program, self._home, self._exclusive = view, program, place, exclusive
        self._uuid = view.uuid

    def without_mps(self) -> dict[str, str]:
        """For clients that shall miss every daemon of this machine, also the default one."""
        return {VISIBLE: self._uuid, "CUDA_MPS_PIPE_DIRECTORY": str(self._home.path / "no-daemon")}

    @contextmanager
    def serving(self, threads: float) -> Iterator[dict[str, str]]:
        """A fresh daemon whose clients get `threads` percent of the SMs each; what they need in their environment."""
        environment = self._environment()
        server, started = 0, None
        try:
            if self._exclusive:
                self._home.compute_mode.write_text(self._view.compute_mode())
                self._view.set_compute_mode("ExclusiveProcess")
            self._start(environment)
            control.set_threads(self._program, environment, threads)
            server = control.server(self._program, environment)
            started = processes.start_time(server)
            # A client counts within the daemon's GPUs, of which there is one.
            yield {**{name: environment[name] for name in control.DIRECTORIES}, VISIBLE: "0"}
        finally:
            try:
                home.end_daemon(self._home, self._program)
                if started is not None and not processes.gone(server, started, END_SECONDS):
                    raise DaemonError(f"the MPS server, PID {server}, outlives its control daemon")
            finally:
                home.restore_mode(self._home, self._view.set_compute_mode)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            VISIBLE: self._uuid,
            "PATH": f"{Path(self._program).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            **control.directories(self._home.pipe, self._home.log),
        }

    def _start(self, environment: dict[str, str]) -> None:
        """`-d` returns once the sockets are there (15 ms, measured)."""
        said = self._home.path / "start.log"
        with said.open("w") as log:
            result = subprocess.run(
                [self._program, "-d"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=START_SECONDS,
                check=False,
            )
        end = time.monotonic() + PID_FILE_SECONDS
        while not result.returncode and self._home.daemon() is None and time.monotonic() < end:
            time.sleep(processes.POLL_SECONDS)
        if result.returncode or self._home.daemon() is None:
            raise DaemonError(f"{self._program} -d exited with {result.returncode}: {self._last_words(said)}")

    def _last_words(self, said: Path) -> str:
        """The end of what the daemon said and logged."""
        files = [said, self._home.log / "control.log"]
        text = " ".join(" ".join(file.read_text(errors="replace").split()) for file in files if file.exists())
        return text[-LOG_CHARACTERS:] or "it said nothing"


@contextmanager
def prepared(view: GpuView, exclusive: bool) -> Iterator[tuple[OwnDaemon, list[str]]]:
    """The daemon, not running yet, and what was cleared away for it.

    Raises ValueError with every reason for which this GPU is not ours to take.
    """
    program = str(bin_dir() / obstacles.PROGRAM) if view.simulated else shutil.which(obstacles.PROGRAM)
    parent = home.base()
    place = Home(parent / view.uuid)
    _refuse(obstacles.of_machine(program, place.longest_socket, exclusive, os.geteuid() == 0))
    assert program is not None  # noqa: S101 - refused above
    with home.alone(parent, view.uuid):
        cleared = home.clear_leftovers(place, program, view.set_compute_mode)
        end = time.monotonic() + ENDING_SECONDS
        while (found := _in_the_way(view)) and time.monotonic() < end:
            time.sleep(processes.POLL_SECONDS)
        _refuse(found)
        home.make(place)
        try:
            yield OwnDaemon(view, program, place, exclusive), cleared
        finally:
            if place.daemon() is None:  # else the next benchmark has to find it
                shutil.rmtree(place.path, ignore_errors=True)


def _in_the_way(view: GpuView) -> list[str]:
    found, share = view.processes(), obstacles.SHARES / view.uuid
    names = processes.names([*found.mps_clients, *found.others])
    return obstacles.of_gpu(view.uuid, share if share.exists() else None, found, names, view.compute_mode())


def _refuse(found: list[str]) -> None:
    if found:
        raise ValueError("--own-daemon: " + "; ".join(found))
