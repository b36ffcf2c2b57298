"""Commands to an MPS daemon (MPS v2).

Guarantees: each command has a time limit, because a server that hangs also blocks commands that only read.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

SECONDS = 15.0
STARTING, POLL = "INITIALIZING", 0.1
NO_DAEMON = "Cannot find MPS control daemon process"
SHOWN_WITHIN = 0.1
"""Percentage points: the daemon shows a thread limit with one digit after the point."""

DIRECTORIES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")


class DaemonError(Exception):
    """An MPS daemon did not start, answer, obey or end. The text says which."""


def directories(pipe: Path, log: Path) -> dict[str, str]:
    """The environment variables by which daemon, commands and clients find each other."""
    return dict(zip(DIRECTORIES, (str(pipe), str(log)), strict=True))


def ask(program: str, environment: Mapping[str, str], *commands: str, seconds: float = SECONDS) -> str:
    """The output of the control program. Its exit code means nothing: it is 0 for errors too (measured)."""
    script = "".join(f"{command}\n" for command in commands)
    with subprocess.Popen(
        [program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(script, timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise DaemonError(f"{'; '.join(commands)!r} was not answered within {seconds:g} s") from None
    if NO_DAEMON in output:
        raise DaemonError(f"no MPS daemon serves {environment.get('CUDA_MPS_PIPE_DIRECTORY')}")
    return output.strip()


def set_threads(program: str, environment: Mapping[str, str], percent: float) -> float:
    """Sets the thread limit of each future client in percent of the SMs. Returns the limit that the daemon reports."""
    text = f"{percent:.4f}".rstrip("0").rstrip(".")
    ask(program, environment, f"set_default_active_thread_percentage {text}")
    answer = ask(program, environment, "get_default_active_thread_percentage")
    try:
        reported = float(answer)
    except ValueError:
        raise DaemonError(f"the daemon answers {answer[:200]!r} when asked for its thread limit") from None
    if abs(reported - percent) > SHOWN_WITHIN:
        raise DaemonError(f"the daemon was asked to give {text} % of the threads and gives {reported:g} %")
    return reported


def server(program: str, environment: Mapping[str, str]) -> int:
    """The PID of the MPS server, which is started if there is none.

    Raises DaemonError if it is not ACTIVE: on a busy machine it can still be INITIALIZING for a moment.
    """
    ask(program, environment, f"start_server -uid {os.getuid()}")
    listed = ask(program, environment, "get_server_list")
    if not listed.isdecimal():
        raise DaemonError(f"the daemon started no server: it lists {listed[:200]!r}")
    end = time.monotonic() + SECONDS
    while (status := ask(program, environment, f"get_server_status {listed}")) == STARTING and time.monotonic() < end:
        time.sleep(POLL)
    if status != "ACTIVE":
        raise DaemonError(f"the MPS server {listed} is {status[:200]}, not ACTIVE")
    return int(listed)
