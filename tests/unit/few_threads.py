"""A process that gets no further thread, as one whose cgroup or node has no PIDs left: the error is the kernel's."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_MORE_THAN_THERE_IS = 1 << 46
"""Bytes of a stack: no address space has so many for it."""


@contextmanager
def no_threads() -> Iterator[None]:
    """No thread of this process can be started while the context is open; those that run go on."""
    before = threading.stack_size(_MORE_THAN_THERE_IS)
    try:
        yield
    finally:
        threading.stack_size(before)
