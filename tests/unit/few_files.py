"""A process that may open no further file, as one whose descriptors leak or whose node has none left."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptors() -> Iterator[None]:
    """While the context is open, this process gets no descriptor; those that it has stay."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
