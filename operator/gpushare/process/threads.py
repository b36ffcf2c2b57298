"""Threads as what they are to the kernel: something that it may have none left of."""

import errno
import os
import threading
from collections.abc import Callable
from typing import Any


def start_thread(target: Callable[..., object], *args: Any, name: str | None = None) -> threading.Thread:
    """A daemon thread. OSError (EAGAIN, as of fork(2)) where the kernel gives none now; Python says RuntimeError."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"{os.strerror(errno.EAGAIN)}: {error}") from error
    return thread
