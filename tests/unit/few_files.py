"""A process that may open no further file, as one whose descriptors leak or whose node has none left."""

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process gets no descriptor while the context is open; those that it has stay."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """This process gets so many descriptors, and none beyond, while the context is open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()
    gc.disable()  # what other tests left open would be closed meanwhile, and make room
    held = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 64, hard))
    try:
        while True:
            try:
                held.append(os.dup(0))
            except OSError:
                break
        for _ in range(left):
            os.close(held.pop())
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        gc.enable()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
