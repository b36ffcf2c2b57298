"""The logs of daemon and server, in lines of the same form as those of MPS.

In the background both append to control.log and server.log, so that copy-and-truncate works. In the foreground both
write to standard error and to no file (measured).
"""

import contextlib
import os
import sys
import time


class MpsLog:
    def __init__(self, directory: str | None, name: str, role: str) -> None:
        """`directory` None: standard error."""
        self.role = role
        if directory is None:
            self._file = sys.stderr.fileno()
        else:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(f"{directory}/{name}", flags, 0o644)

    def write(self, text: str) -> None:
        seconds = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}"
        # On a full disk MPS is assumed to go on, as a C program does that ignores what fprintf returns: not measured.
        with contextlib.suppress(OSError):
            os.write(self._file, f"[{stamp} {self.role} {os.getpid():>5}] {text}\n".encode())
