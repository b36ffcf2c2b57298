"""A private MPS daemon of the benchmark, so that time-slicing and MPS can be measured on one machine.

Guarantees:
- It serves a private directory, never CUDA's default one, which other programs and the container toolkit use.
- It is started only on a GPU that nobody uses, and its limits are read back.
- It runs only while MPS is measured: while time-slicing is measured, nothing of it is on the GPU.
- After the benchmark, daemon, directory and compute mode are as before. After a SIGKILL the next benchmark restores
  them.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare.simulation import bin_dir
from gpushare_workload.bench.daemon import control, directory, obstacles, processes
from gpushare_workload.bench.daemon.control import DaemonError
from gpushare_workload.bench.daemon.directory import DaemonDirectory
from gpushare_workload.gpus.monitor import VISIBLE, GpuMonitor

START_SECONDS = 30.0
PID_FILE_SECONDS = 5.0
END_SECONDS = 10.0
ENDING_SECONDS = 3.0
"""How long NVML may still list a process that is ending."""
LOG_CHARACTERS = 500


class OwnDaemon:
    """Created by `prepared`. Use it for one pass at a time."""

    def __init__(self, monitor: GpuMonitor, program: str, place: DaemonDirectory, exclusive: bool) -> None:
        self._monitor, self._program, self._directory, self._exclusive = monitor, program, place, exclusive
        self._uuid = monitor.uuid

    def without_mps(self) -> dict[str, str]:
        """The environment of clients that shall reach no MPS daemon of this machine, not even the default one."""
        return {VISIBLE: self._uuid, "CUDA_MPS_PIPE_DIRECTORY": str(self._directory.path / "no-daemon")}

    @contextmanager
    def serving(self, threads: float) -> Iterator[dict[str, str]]:
        """Runs a new daemon whose clients get `threads` percent of the SMs each. Yields the clients' environment."""
        environment = self._environment()
        server, started = 0, None
        try:
            if self._exclusive:
                self._directory.compute_mode.write_text(self._monitor.compute_mode())
                self._monitor.set_compute_mode("ExclusiveProcess")
            self._start(environment)
            control.set_threads(self._program, environment, threads)
            server = control.server(self._program, environment)
            started = processes.start_time(server)
            # A client counts the daemon's GPUs, and there is one.
            yield {**{name: environment[name] for name in control.DIRECTORIES}, VISIBLE: "0"}
        finally:
            try:
                directory.end_daemon(self._directory, self._program)
                if started is not None and not processes.gone(server, started, END_SECONDS):
                    raise DaemonError(f"the MPS server, PID {server}, outlives its MPS daemon")
            finally:
                directory.restore_mode(self._directory, self._monitor.set_compute_mode)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            VISIBLE: self._uuid,
            "PATH": f"{Path(self._program).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            **control.directories(self._directory.pipe, self._directory.log),
        }

    def _start(self, environment: dict[str, str]) -> None:
        """`-d` returns once the sockets are there (15 ms, measured)."""
        output = self._directory.path / "start.log"
        with output.open("w") as log:
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
        while not result.returncode and self._directory.daemon() is None and time.monotonic() < end:
            time.sleep(processes.POLL_SECONDS)
        if result.returncode or self._directory.daemon() is None:
            raise DaemonError(f"{self._program} -d exited with {result.returncode}: {self._last_output(output)}")

    def _last_output(self, output: Path) -> str:
        """The end of what the daemon printed and logged."""
        files = [output, self._directory.log / "control.log"]
        text = " ".join(" ".join(file.read_text(errors="replace").split()) for file in files if file.exists())
        return text[-LOG_CHARACTERS:] or "it printed nothing"


@contextmanager
def prepared(monitor: GpuMonitor, exclusive: bool) -> Iterator[tuple[OwnDaemon, list[str]]]:
    """(the daemon, which does not run yet; sentences about what was cleared away for it).

    Raises ValueError with every reason why the benchmark may not use this GPU.
    """
    program = str(bin_dir() / obstacles.PROGRAM) if monitor.simulated else shutil.which(obstacles.PROGRAM)
    parent = directory.base()
    place = DaemonDirectory(parent / monitor.uuid)
    _refuse(obstacles.of_machine(program, place.longest_socket, exclusive, os.geteuid() == 0))
    assert program is not None  # noqa: S101 - refused above
    with directory.alone(parent, monitor.uuid):
        cleared = directory.clear_leftovers(place, program, monitor.set_compute_mode)
        end = time.monotonic() + ENDING_SECONDS
        while (found := _in_the_way(monitor)) and time.monotonic() < end:
            time.sleep(processes.POLL_SECONDS)
        _refuse(found)
        directory.make(place)
        try:
            yield OwnDaemon(monitor, program, place, exclusive), cleared
        finally:
            if place.daemon() is None:  # otherwise the next benchmark must find the directory
                shutil.rmtree(place.path, ignore_errors=True)


def _in_the_way(monitor: GpuMonitor) -> list[str]:
    found, share = monitor.processes(), obstacles.SHARES / monitor.uuid
    names = processes.names([*found.mps_clients, *found.others])
    return obstacles.of_gpu(monitor.uuid, share if share.exists() else None, found, names, monitor.compute_mode())


def _refuse(found: list[str]) -> None:
    if found:
        raise ValueError("this GPU cannot be measured: " + "; ".join(found))
