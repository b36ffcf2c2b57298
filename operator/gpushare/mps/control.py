"""NVIDIA's control program, `nvidia-cuda-mps-control`, as typed calls: protocol v2, measured on driver 580.

Guarantees: each call ends within its time limit (a wedged server hangs even read-only commands), and so do the
program's children. No call trusts the exit code, which is 0 for errors too: a value that was set is compared with the
answer. Not guaranteed: that the daemon accepted a memory limit. It answers nothing when it drops one, and shows limits
floored to whole GiB (`shown_mib`), so read a limit back after setting it.
Standard library only; synchronous, and safe to call from several threads.
"""

import math
import os
import re
import select
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

PROGRAM = "nvidia-cuda-mps-control"
NO_DAEMON = "Cannot find MPS control daemon process"
NO_CONTEXT = "201"
"""CUDA's error: the process lives, and has no context in the server (H200)."""
DEFAULT_SECONDS = 5.0
MAX_ANSWER_CHARACTERS = 200
"""The characters of an unexpected answer in an error message; the daemon's own sentences are shorter."""

MAX_ANSWER_BYTES = 256 * 1024
"""The answer of one run; a full table of clients has some 3 kB. A supervisor's memory does not depend on what its
daemon says."""

MAX_DIGITS = 18
"""The digits of a number in an answer: more are garbage, and thousands of them make int() raise."""

_CONTEXT = re.compile(rf"^\d{{1,{MAX_DIGITS}}}\.\d+$")
"""PID and number of a client's context."""
_MEMORY = re.compile(rf"^(\d{{1,{MAX_DIGITS}}})([KMG])$")
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024}


class ControlError(Exception):
    """A control command failed. The text names the command and the answer."""


class NoDaemonError(ControlError):
    """No control daemon serves this pipe directory."""


class ControlTimeoutError(ControlError):
    """No answer within the time limit: the daemon or its server is wedged, or a server is starting."""


class RefusedError(ControlError):
    """The daemon's answer is not that of a success. `text`: the answer."""

    def __init__(self, command: str, text: str) -> None:
        super().__init__(f"{command!r} was answered with {text[:MAX_ANSWER_CHARACTERS]!r}")
        self.text = text


def daemon_environment(bin_dir: Path | None, pipe: Path, log: Path) -> dict[str, str]:
    """The environment by which daemon and control program find each other, and the daemon finds its server program.

    `bin_dir` None: the executables are on PATH.
    """
    path = os.environ.get("PATH", os.defpath)
    return {
        **os.environ,
        "PATH": f"{bin_dir}{os.pathsep}{path}" if bin_dir else path,
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(log),
    }


def shown_mib(mib: int) -> int:
    """A memory limit of `mib` MiB as the daemon shows it: from 1 GiB on whole GiB, rounded down (measured)."""
    return mib if mib < 1024 else mib // 1024 * 1024


ShownLimits = tuple[float, int | None]
"""(percent, MiB as shown or None)."""


class DaemonControl(ABC):
    """What supervisor and agent ask of a daemon, whichever protocol it speaks. Each call may raise any ControlError."""

    @abstractmethod
    def survey(self, last_known: int | None) -> tuple[dict[int, str], dict[int, int]]:
        """(status by PID, number of client contexts) of the servers. Cheaper where the server is still `last_known`."""

    @abstractmethod
    def server_list(self) -> list[int]:
        """PIDs of the daemon's servers."""

    @abstractmethod
    def sound_servers(self) -> list[int]:
        """PIDs of servers that can terminate a client."""

    @abstractmethod
    def clients(self, server: int) -> list[int]:
        """PIDs of the server's clients, in the daemon's PID namespace."""

    @abstractmethod
    def terminate_client(self, server: int, pid: int) -> bool:
        """End a client's contexts without harm to its neighbours. Returns False if the daemon knows no such client."""

    @abstractmethod
    def start_server(self) -> None:
        """Request a server. No-op while one runs."""

    @abstractmethod
    def quit(self) -> None:
        """End the daemon, which has no client."""

    @abstractmethod
    def server_limits(self, server: int) -> ShownLimits:
        """What the server gives clients that attach without a grant of their own."""

    @abstractmethod
    def write_server_limits(self, server: int, threads: int, memory_mib: int) -> None:
        """Set these limits, as far as the server has them of its own."""


class ControlCommands(DaemonControl):
    """The commands of v2 as typed calls, whatever carries them to the daemon."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: the time limit of a call, for all its commands."""
        self._seconds = seconds

    @abstractmethod
    def run(self, *commands: str, seconds: float | None = None) -> str:
        """The daemon's answers to `commands`, in order, without the last newline; `seconds` is for all of them."""

    # Servers and clients

    def server_list(self) -> list[int]:
        """PIDs of the daemon's servers."""
        return _pids("get_server_list", self.run("get_server_list"))

    def server_status(self, server: int) -> str:
        """ACTIVE, INITIALIZING, FAULT and others. Raises RefusedError if there is no such server."""
        command = f"get_server_status {server}"
        return _word(command, self.run(command))

    def survey(self, last_known: int | None) -> tuple[dict[int, str], dict[int, int]]:
        """(status by PID, how many contexts each client has, by PID). One run of the program, if the server is still
        `last_known`.
        """
        commands = ["get_server_list", "get_device_client_list"]
        if last_known is not None:
            commands.insert(0, f"get_server_status {last_known}")
        lines = self.run(*commands).splitlines()
        known = {} if last_known is None else {last_known: lines.pop(0) if lines else ""}
        # In the second list, lines of devices begin with a bracket. Without a server that list is empty.
        devices = next((number for number, line in enumerate(lines) if line.startswith("[")), len(lines))
        listed = _pids("get_server_list", "\n".join(lines[:devices]))
        contexts = context_counts("\n".join(lines[devices:]))
        words = {pid: known[pid] if pid in known else self.run(f"get_server_status {pid}") for pid in listed}
        return {pid: _word(f"get_server_status {pid}", word) for pid, word in words.items()}, contexts

    def sound_servers(self) -> list[int]:
        """PIDs of servers that can terminate a client: to ask one in FAULT hangs the daemon (measured)."""
        return [pid for pid in self.server_list() if self.server_status(pid) != "FAULT"]

    def start_server(self, uid: int = 0) -> None:
        """Request a server. It is up, or has failed, when the next command is answered. No-op while one runs."""
        self._silent(f"start_server -uid {uid}")

    def clients(self, server: int) -> list[int]:
        """PIDs of the server's clients, in the daemon's PID namespace."""
        command = f"get_client_list {server}"
        return _pids(command, self.run(command))

    def terminate_client(self, server: int, pid: int) -> bool:
        """End a client's contexts without harm to its neighbours. Returns False if the daemon knows no such client."""
        command = f"terminate_client {server} {pid}"
        answer = self.run(command)
        unknown = answer == NO_CONTEXT or "Invalid process" in answer or "not found" in answer
        if answer != "0" and not unknown:
            raise RefusedError(command, answer)
        return not unknown

    def quit(self, seconds: int | None = None) -> None:
        """End the daemon once it has no client. After `seconds`, if given, the daemon ends its clients (error 806).

        Raises ControlTimeoutError if there were clients; the daemon still waits for their end.
        """
        limit = self._seconds + (seconds or 0)
        answer = self.run("quit" if seconds is None else f"quit -t {seconds}", seconds=limit)
        if answer:
            raise RefusedError("quit", answer)

    # Limits of the daemon, for later servers and their clients

    def default_threads(self) -> float:
        """Percent of the GPU's SMs."""
        return _number("get_default_active_thread_percentage", self.run("get_default_active_thread_percentage"))

    def set_default_threads(self, percent: int) -> None:
        self._threads(f"set_default_active_thread_percentage {whole(percent)}", percent)

    def default_memory_mib(self, device: str = "0") -> int | None:
        """The limit as the daemon shows it (`shown_mib`); None: no limit. A limit shows only under the name used to
        set it."""
        command = f"get_default_device_pinned_mem_limit {device}"
        return _memory(command, self.run(command))

    def set_default_memory(self, mib: int, device: str = "0") -> None:
        self._silent(f"set_default_device_pinned_mem_limit {device} {whole(mib)}M")

    def default_limits(self) -> ShownLimits:
        """(percent, MiB as shown or None) of the daemon, in one run of the program."""
        # Memory comes last: without a limit nothing is printed, which elsewhere would look like a missing line.
        commands = (
            "get_default_active_thread_percentage",
            "get_default_device_pinned_mem_limit 0",
        )
        threads, memory = _lines(commands, self.run(*commands))
        return _number(commands[0], threads), _memory(commands[1], memory)

    # Limits of a running server, for its later clients

    def server_threads(self, server: int) -> float:
        command = f"get_active_thread_percentage {server}"
        return _number(command, self.run(command))

    def set_server_threads(self, server: int, percent: int) -> None:
        self._threads(f"set_active_thread_percentage {server} {whole(percent)}", percent)

    def server_memory_mib(self, server: int, device: str = "0") -> int | None:
        command = f"get_device_pinned_mem_limit {server} {device}"
        return _memory(command, self.run(command))

    def set_server_memory(self, server: int, mib: int, device: str = "0") -> None:
        self._silent(f"set_device_pinned_mem_limit {server} {device} {whole(mib)}M")

    def server_limits(self, server: int) -> tuple[float, int | None]:
        """(percent, MiB as shown or None) of a server, in one run of the program."""
        commands = (f"get_active_thread_percentage {server}", f"get_device_pinned_mem_limit {server} 0")
        threads, memory = _lines(commands, self.run(*commands))
        return _number(commands[0], threads), _memory(commands[1], memory)

    def write_server_limits(self, server: int, threads: int, memory_mib: int) -> None:
        self.set_server_threads(server, threads)
        self.set_server_memory(server, memory_mib)

    def _silent(self, command: str) -> None:
        """Runs a command that prints nothing if it succeeds."""
        answer = self.run(command)
        if answer:
            raise RefusedError(command, answer)

    def _threads(self, command: str, percent: int) -> None:
        """The daemon answers with the percentage in force: the old one if it refuses the new one."""
        answer = self.run(command)
        if _number(command, answer) != percent:
            raise RefusedError(command, answer)


class ControlProgram(ControlCommands):
    """Commands to the daemon of one pipe directory, each call by a run of the control program."""

    def __init__(self, bin_dir: Path | None, pipe: Path, log: Path, seconds: float = DEFAULT_SECONDS) -> None:
        super().__init__(seconds)
        self._program = str(bin_dir / PROGRAM) if bin_dir else PROGRAM
        self._environment = daemon_environment(bin_dir, pipe, log)
        self._pipe = pipe

    def run(self, *commands: str, seconds: float | None = None) -> str:
        """The daemon's answers to `commands`, in order, without the last newline; `seconds` is for all of them."""
        for command in commands:
            if "\n" in command:
                raise ValueError(f"a control command is one line, not {command!r}")
        script = "".join(f"{command}\n" for command in commands)
        code, answer = run_program(
            [self._program], self._environment, script, self._seconds if seconds is None else seconds
        )
        if NO_DAEMON in answer:
            raise NoDaemonError(f"no MPS control daemon serves {self._pipe}")
        if code not in (0, 1):
            raise RefusedError("; ".join(commands), f"exit status {code}: {answer}")
        return answer


def run_program(argv: Sequence[str], environment: Mapping[str, str], script: str, seconds: float) -> tuple[int, str]:
    """(exit status, output) of a program that reads `script`. It gets a session of its own, so that its children end
    with it. Raises ControlError.
    """
    program = argv[0]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise ControlError(f"{program} cannot be started: {error.strerror or error}") from error
    command = script.strip().replace("\n", "; ") or " ".join(argv[1:])
    end = time.monotonic() + seconds
    with process:
        try:
            output = _output(process, script, end)
            if len(output) > MAX_ANSWER_BYTES:
                os.killpg(process.pid, signal.SIGKILL)
                raise RefusedError(command, f"more than {MAX_ANSWER_BYTES} bytes: {_text(output)}")
            process.wait(max(0.0, end - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            os.killpg(process.pid, signal.SIGKILL)
            raise ControlTimeoutError(f"{command!r} was not answered within {seconds:g} s") from error
    return process.returncode, _text(output).strip("\n")


def _output(process: "subprocess.Popen[bytes]", script: str, end: float) -> bytes:
    """All that it prints, or a little more than MAX_ANSWER_BYTES of it. TimeoutError: it goes on after `end`."""
    stdin, stdout = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
    with suppress(BrokenPipeError):  # it ended without reading; a pipe holds more than any script of ours has
        stdin.write(script.encode())
        stdin.close()
    output, readable = b"", select.poll()
    readable.register(stdout, select.POLLIN)
    while len(output) <= MAX_ANSWER_BYTES:
        left = end - time.monotonic()
        if left <= 0 or not readable.poll(1000 * left):
            raise TimeoutError
        chunk = os.read(stdout.fileno(), MAX_ANSWER_BYTES)
        if not chunk:
            return output
        output += chunk
    return output


def _text(output: bytes) -> str:
    return output.decode(errors="replace")


def whole(value: int) -> int:
    """The daemon silently misreads fractions, spaces and signs, so only positive integers may reach it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"a limit is a whole number of at least 1, not {value!r}")
    return value


def _lines(commands: Sequence[str], answer: str) -> list[str]:
    """One line per command; only the last command may print none."""
    lines = answer.split("\n")
    if len(lines) == len(commands) - 1:
        lines.append("")
    if len(lines) != len(commands):
        raise RefusedError("; ".join(commands), answer)
    return lines


def context_counts(devices: str) -> dict[int, int]:
    """How many contexts each client has, by PID, from the answer to `get_device_client_list`."""
    return dict(Counter(int(line.partition(".")[0]) for line in devices.splitlines() if _CONTEXT.match(line)))


def _pids(command: str, answer: str) -> list[int]:
    lines = answer.split()
    if not all(line.isdecimal() and len(line) <= MAX_DIGITS for line in lines):
        raise RefusedError(command, answer)
    return [int(line) for line in lines]


def _word(command: str, answer: str) -> str:
    if len(answer.split()) != 1 or len(answer) > MAX_ANSWER_CHARACTERS:
        raise RefusedError(command, answer)
    return answer


def _number(command: str, answer: str) -> float:
    try:
        number = float(answer)
    except ValueError:
        raise RefusedError(command, answer) from None
    if not math.isfinite(number):  # "nan" and "inf" are numbers for Python, and none in a state.json
        raise RefusedError(command, answer)
    return number


def _memory(command: str, answer: str) -> int | None:
    if not answer:
        return None
    match = _MEMORY.match(answer)
    if match is None:
        raise RefusedError(command, answer)
    return int(int(match[1]) * _MIB[match[2]])
