"""A private MPS daemon on a bare machine, so that time-slicing and MPS can be measured on one GPU.

Guarantees:
- The daemon serves a private directory, never CUDA's default one, which other programs and the container toolkit use.
- It is started only on a GPU that no other program uses, and its limits are read back.
- It runs only while MPS is measured: while time-slicing is measured, nothing of it is on the GPU.
- Afterwards daemon, directory and compute mode are as before. After a SIGKILL the next measurement restores them.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpushare.mps.control import PROGRAM, ControlError, ControlProgram, daemon_environment
from gpushare.process.procfs import read_start_of_running
from gpushare.simulation import bin_dir
from gpushare_workload.gpus.monitor import VISIBLE, GpuMonitor
from gpushare_workload.mps import directory, obstacles, processes
from gpushare_workload.mps.directory import DaemonDirectory
from gpushare_workload.mps.modes import LOG, PIPE, SharingMode

START_SECONDS = 30.0
PID_FILE_SECONDS = 5.0
END_SECONDS = 10.0
ENDING_SECONDS = 3.0
"""How long NVML may still list a process that is ending."""
SERVER_SECONDS = 15.0
"""How long a server may take to start."""
STARTING, POLL_SECONDS = "INITIALIZING", 0.1
LOG_CHARACTERS = 500
ANSWER_CHARACTERS = 200
SHOWN_WITHIN = 0.1
"""Percentage points: the daemon shows a thread limit with one digit after the point."""


class OwnDaemon:
    """`prepared` creates it. Prepare one set of processes at a time."""

    def __init__(self, monitor: GpuMonitor, program: Path, place: DaemonDirectory, exclusive: bool) -> None:
        self._monitor, self._program, self._directory, self._exclusive = monitor, program, place, exclusive
        self._uuid = monitor.uuid

    def modes(self) -> Sequence[SharingMode]:
        """Every mode: the daemon runs in those that need it."""
        return tuple(SharingMode)

    def describe(self) -> str:
        """A clause for people, and for the document."""
        return "a private MPS daemon, while MPS is measured"

    @contextmanager
    def ready_for(self, threads: float | None) -> Iterator[dict[str, str]]:
        """The environment of processes that share the GPU: under a new daemon that gives each `threads` percent of the
        SMs, or, with None, in time slices, where they reach no MPS daemon of this machine, not even the default one.

        Raises ControlError for a daemon that does not start, obey or end.
        """
        if threads is None:
            yield {VISIBLE: self._uuid, PIPE: str(self._directory.path / "no-daemon")}
            return
        control = self._directory.control(self._program)
        server, started = 0, None
        try:
            if self._exclusive:
                self._directory.compute_mode.write_text(self._monitor.compute_mode())
                self._monitor.set_compute_mode("ExclusiveProcess")
            self._start()
            set_threads(control, threads)
            server = running_server(control)
            started = read_start_of_running(server)
            # A client counts the daemon's GPUs, and there is one.
            yield {PIPE: str(self._directory.pipe), LOG: str(self._directory.log), VISIBLE: "0"}
        finally:
            try:
                directory.end_daemon(self._directory, self._program)
                if started is not None and not processes.gone(server, started, END_SECONDS):
                    raise ControlError(f"the MPS server, PID {server}, outlives its MPS daemon")
            finally:
                directory.restore_mode(self._directory, self._monitor.set_compute_mode)

    def _start(self) -> None:
        """Starts the daemon: `-d` returns once the sockets are there (15 ms, measured)."""
        environment = daemon_environment(self._program.parent, self._directory.pipe, self._directory.log)
        output = self._directory.path / "start.log"
        with output.open("w") as log:
            result = subprocess.run(
                [str(self._program), "-d"],
                env={**environment, VISIBLE: self._uuid},
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
            raise ControlError(f"{self._program} -d exited with {result.returncode}: {self._last_output(output)}")

    def _last_output(self, output: Path) -> str:
        """The end of what the daemon printed and logged."""
        files = [output, self._directory.log / "control.log"]
        text = " ".join(" ".join(file.read_text(errors="replace").split()) for file in files if file.exists())
        return text[-LOG_CHARACTERS:] or "it printed nothing"


@contextmanager
def prepared(monitor: GpuMonitor, exclusive: bool) -> Iterator[tuple[OwnDaemon, list[str]]]:
    """(the daemon, which does not run yet; sentences about what was cleared away for it).

    Raises ValueError with every reason why this GPU may not be used.
    """
    program = str(bin_dir() / PROGRAM) if monitor.simulated else shutil.which(PROGRAM)
    parent = directory.base()
    place = DaemonDirectory(parent / monitor.uuid)
    _refuse(obstacles.of_machine(program, place.longest_socket, exclusive, os.geteuid() == 0))
    assert program is not None  # noqa: S101 - refused above
    with directory.alone(parent, monitor.uuid):
        cleared = directory.clear_leftovers(place, Path(program), monitor.set_compute_mode)
        end = time.monotonic() + ENDING_SECONDS
        while (reasons := _in_the_way(monitor)) and time.monotonic() < end:
            time.sleep(processes.POLL_SECONDS)
        _refuse(reasons)
        directory.make(place)
        try:
            yield OwnDaemon(monitor, Path(program), place, exclusive), cleared
        finally:
            if place.daemon() is None:  # otherwise the next measurement must find the directory
                shutil.rmtree(place.path, ignore_errors=True)


def set_threads(control: ControlProgram, percent: float) -> None:
    """Gives each future client `percent` of the SMs, which may be a fraction.

    Raises ControlError if the daemon reports another limit.
    """
    text = f"{percent:.4f}".rstrip("0").rstrip(".")
    control.run(f"set_default_active_thread_percentage {text}")
    answer = control.run("get_default_active_thread_percentage")
    try:
        reported = float(answer)
    except ValueError:
        raise ControlError(
            f"the daemon answers {answer[:ANSWER_CHARACTERS]!r} when asked for its thread limit"
        ) from None
    if abs(reported - percent) > SHOWN_WITHIN:
        raise ControlError(f"the daemon was asked to give {text} % of the threads and gives {reported:g} %")


def running_server(control: ControlProgram) -> int:
    """The PID of the MPS server, which is started if there is none.

    Raises ControlError if the server is not ACTIVE: on a busy machine it can still be INITIALIZING for a moment.
    """
    control.start_server(os.getuid())
    servers = control.server_list()
    if len(servers) != 1:
        raise ControlError(f"the daemon started no server: it lists {servers}")
    server = servers[0]
    end = time.monotonic() + SERVER_SECONDS
    while (status := control.server_status(server)) == STARTING and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    if status != "ACTIVE":
        raise ControlError(f"the MPS server {server} is {status}, not ACTIVE")
    return server


def _in_the_way(monitor: GpuMonitor) -> list[str]:
    listed, share = monitor.processes(), obstacles.SHARES / monitor.uuid
    names = processes.names([*listed.mps_clients, *listed.others])
    return obstacles.of_gpu(monitor.uuid, share if share.exists() else None, listed, names, monitor.compute_mode())


def _refuse(reasons: list[str]) -> None:
    if reasons:
        raise ValueError("this GPU cannot be measured: " + "; ".join(reasons))
