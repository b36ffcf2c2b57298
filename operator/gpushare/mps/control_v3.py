"""NVIDIA's control program for protocol v3 as typed calls: `nvidia-cuda-mps-control -p 3 MODULE VERB …`.

Held to NVIDIA's documentation (docs/mps.md names its pages), and not run on hardware yet. One server serves a daemon's
clients; a namespace in it has the limits of one container.

Guarantees: each call ends within its time limit. An exit status other than 0, and an answer that is not of the
documented form, raise RefusedError; a status of 0 proves nothing, so what is set is to be read back. Not guaranteed:
that a listed client is one. A row ends in the client's command line, which a client chooses, line breaks and all; so
PIDs count for something only where NVML has them, too.
"""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from gpushare.mps.control import (
    DEFAULT_SECONDS,
    NO_DAEMON,
    PROGRAM,
    ControlError,
    DaemonControl,
    NoDaemonError,
    RefusedError,
    ShownLimits,
    daemon_environment,
    run_program,
    whole,
)

SERVER = "share"
"""The name of the daemon's server; a part of socket paths, which have 107 characters at most."""
DEFAULT_NAMESPACE = "default"
READY = "Ready"
"""The only status that the documentation shows."""
START_SECONDS = 60.0
"""A server that we asked for and that is younger is starting, whatever its status."""
NAME = re.compile(r"[a-z0-9_]{1,64}")
AS_CSV = "--format=csv,noheader"
_CLIENT = re.compile(rf"(\d{{1,9}}),{SERVER},")
_MEMORY = re.compile(r"(\d{1,18})([KMG])")
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024}


@dataclass(frozen=True, slots=True)
class MpsNamespace:
    """A namespace as the daemon lists it. `memory_mib` None: no limit, or none that is understood. `pipe`: has its
    socket."""

    threads: float
    memory_mib: int | None
    pipe: Path


class ControlProgramV3(DaemonControl):
    """Commands to the daemon of one pipe directory, each by a run of the control program."""

    def __init__(self, bin_dir: Path | None, pipe: Path, log: Path, seconds: float = DEFAULT_SECONDS) -> None:
        """`seconds`: the time limit of one run."""
        self._program = str(bin_dir / PROGRAM) if bin_dir else PROGRAM
        self._environment = daemon_environment(bin_dir, pipe, log)
        self._pipe = pipe
        self._seconds = seconds
        self._starting_until = 0.0
        self.listed: list[int] = []
        """PIDs of the clients in the latest list."""

    def run(self, *words: str) -> str:
        """What one command prints, without the last newline. RefusedError: it failed."""
        if not (self._pipe / "control").is_socket():
            raise NoDaemonError(f"no MPS control daemon serves {self._pipe}")
        code, answer = run_program([self._program, "-p", "3", *words], self._environment, "", self._seconds)
        if code != 0 and NO_DAEMON in answer:
            raise NoDaemonError(f"no MPS control daemon serves {self._pipe}")
        if code != 0:
            raise RefusedError(" ".join(words), f"exit status {code}: {answer}")
        return answer

    # Servers and clients

    def survey(self, last_known: int | None) -> tuple[dict[int, str], dict[int, int]]:
        """The answer in the words of v2, as far as they have the same meaning: `Ready` is ACTIVE. A client counts as
        one context."""
        server = self._server()
        if server is None:
            self.listed = []
            return {}, {}
        pid, status = server
        if status == READY:
            status = "ACTIVE"
        elif time.monotonic() < self._starting_until:
            status = "INITIALIZING"
        return {pid: status}, dict.fromkeys(self.clients(pid), 1)

    def server_list(self) -> list[int]:
        server = self._server()
        return [] if server is None else [server[0]]

    def sound_servers(self) -> list[int]:
        server = self._server()
        return [server[0]] if server is not None and server[1] == READY else []

    def start_server(self) -> None:
        """Starts a server for the clients of all users, which is UID 0's to do."""
        self._starting_until = time.monotonic() + START_SECONDS
        self.run("server", "create", SERVER, "--uid=0")

    def clients(self, server: int) -> list[int]:
        words = ("client", "list", f"--server={SERVER}", AS_CSV)
        answer = self.run(*words)
        self.listed = list(dict.fromkeys(int(row[1]) for line in answer.splitlines() if (row := _CLIENT.match(line))))
        if answer and not self.listed:
            raise RefusedError(" ".join(words), answer)
        return self.listed

    def terminate_client(self, server: int, pid: int) -> bool:
        """The documentation does not say what is answered for a process that is none."""
        if pid not in self.clients(server):
            return False
        self.run("client", "terminate", str(pid))
        return True

    def quit(self) -> None:
        """Refused while there is a client: `-q` ends the servers, and their clients with them."""
        server = self._server()
        if server is not None and self.clients(server[0]):
            raise ControlError(f"the daemon is not stopped while it has clients: {len(self.listed)}")
        self.run("-q")

    def _server(self) -> tuple[int, str] | None:
        """Its PID and status. The lines: name, uid, pid, status, pipe-directory, allowed-devices, context-ids."""
        words = ("server", "list", AS_CSV)
        answer = self.run(*words)
        for line in answer.splitlines():
            fields = line.split(",")
            if len(fields) < 4:
                raise RefusedError(" ".join(words), answer)
            if fields[0] == SERVER and fields[2].isdecimal() and len(fields[2]) < 10 and int(fields[2]) > 0:
                return int(fields[2]), fields[3]
        return None

    # Limits

    def server_limits(self, server: int) -> ShownLimits:
        """The limits of the default namespace."""
        namespace = self.namespaces().get(DEFAULT_NAMESPACE)
        if namespace is None:
            raise RefusedError("namespace list", f"there is no namespace {DEFAULT_NAMESPACE}")
        return namespace.threads, namespace.memory_mib

    def write_server_limits(self, server: int, threads: int, memory_mib: int) -> None:
        self.run("server", "set", SERVER, *_limits(threads, memory_mib))

    def namespaces(self) -> dict[str, MpsNamespace]:
        """The namespaces by name. The daemon prints name, server, server-status, pinned-memory-limit,
        active-thread-percentage, client-priority, pipe-directory.
        """
        words = ("namespace", "list", f"--server={SERVER}", AS_CSV)
        answer = self.run(*words)
        by_name: dict[str, MpsNamespace] = {}
        for line in answer.splitlines():
            fields = line.split(",", 6)
            try:
                name, server, _, memory, threads, _, pipe = fields
                shown = MpsNamespace(float(threads), _memory(memory), Path(pipe))
            except ValueError:
                raise RefusedError(" ".join(words), answer) from None
            if server == SERVER:
                by_name[name] = shown
        return by_name

    def create_namespace(self, name: str) -> None:
        self.run("namespace", "create", _name(name), f"--server={SERVER}")

    def set_namespace(self, name: str, threads: int, memory_mib: int) -> None:
        self.run("namespace", "set", _name(name), f"--server={SERVER}", *_limits(threads, memory_mib))

    def delete_namespace(self, name: str) -> None:
        """Deletes it without --force, so one with clients stays."""
        self.run("namespace", "delete", _name(name), f"--server={SERVER}")


def _limits(threads: int, memory_mib: int) -> tuple[str, ...]:
    if threads > 100:
        raise ValueError(f"threads are at most 100, not {threads!r}")
    return f"--active-thread-percentage={whole(threads)}", f"--pinned-memory-limit={whole(memory_mib)}M"


def _memory(text: str) -> int | None:
    match = _MEMORY.fullmatch(text)
    return int(int(match[1]) * _MIB[match[2]]) if match else None


def _name(name: str) -> str:
    """`name`, if it has the documented form: no other may reach a command line or a path. ValueError."""
    if NAME.fullmatch(name) is None:
        raise ValueError(f"a namespace has 1 to 64 lower-case letters, digits and underscores, not {name!r}")
    return name
