"""control.log and server.log: lines shaped as MPS writes them, appended, so that copy-and-truncate works on them."""

import os
import time


class MpsLog:
    def __init__(self, directory: str, name: str, role: str) -> None:
        self._role = f"{role} {os.getpid()}"
        self._file = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, text: str) -> None:
        seconds = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}"
        os.write(self._file, f"[{stamp} {self._role:>12}] {text}\n".encode())
