"""One `kubectl proxy` for all questions of a command: kubectl starts once, and so does the program that logs in.

It listens at a Unix socket in a directory that is the user's alone. A shell watches over it: it ends the proxy and
removes the directory once our end of its standard input is closed, so by close() and also where we are killed.
"""

import http.client
import os
import select
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpushare.kubectl.failures import UnreachableError, of_kubectl

READY_SECONDS = 25.0
ANSWER_SECONDS = 25.0
"""The longest silence of the API server. The credentials' own program may need a part of it."""
END_SECONDS = 5.0
LONGEST_FOLDER = 103 - len("/kubectl-gpushare-XXXXXXXX/socket")
"""Characters of the directory for the socket: a Unix socket's path has at most 103 on some systems."""
WATCH = """
trap : HUP INT QUIT TERM
"$@" </dev/null 2>"$0/stderr" &
exec >&- 2>&-
read -r _
kill $!
wait
rm -rf -- "$0"
"""
"""$0: the directory. The shell closes its own output, so that what reads it sees the proxy's end. It outlives a Ctrl-C,
which goes to us too; in the background the proxy is deaf to that one."""


class Proxy:
    def __init__(self, program: str, flags: Sequence[str]) -> None:
        """Starts it and does not wait for it. `flags`: its own, and which cluster, such as --context=…

        Raises UnreachableError where there is no room for its socket.
        """
        self._program = program
        try:
            above = tempfile.gettempdir()
            above = above if len(above) <= LONGEST_FOLDER else "/tmp"  # noqa: S108 - mkdtemp makes a folder of its own
            self._folder = Path(tempfile.mkdtemp(prefix="kubectl-gpushare-", dir=above))
        except OSError as error:
            raise UnreachableError(f"kubectl proxy needs a temporary directory, set TMPDIR: {error}") from None
        self._socket = self._folder / "socket"
        # Servers behind a path, as Rancher's, get the path appended. Nothing but this process reaches the socket.
        command = [program, "proxy", f"--unix-socket={self._socket}", "--append-server-path", *flags]
        its_input, self._lifeline = os.pipe()
        self._said, its_output = os.pipe()
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCH, str(self._folder), *command],
            stdin=its_input,
            stdout=its_output,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_input)
        os.close(its_output)

    def wait_ready(self) -> "Proxy":
        """Itself, once it listens. Raises UnreachableError where it ends before, with its reason."""
        ready, _, _ = select.select([self._said], [], [], READY_SECONDS)
        if not ready:
            raise UnreachableError(f"no cluster: kubectl has not started within {READY_SECONDS:.0f} s")
        if os.read(self._said, 1000):  # it says where it listens
            return self
        if shutil.which(self._program) is None:
            raise UnreachableError(f"no cluster: the program {self._program} is not on the PATH")
        raise of_kubectl((self._folder / "stderr").read_text(errors="replace"))

    def connection(self, seconds: float) -> http.client.HTTPConnection:
        """`seconds`: the longest silence."""
        return _Connection(self._socket, seconds)

    def close(self) -> None:
        os.close(self._lifeline)
        os.close(self._said)
        try:
            self._watcher.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._watcher.kill()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)  # the only name that kubectl proxy takes
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
