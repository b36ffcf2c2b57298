"""The shared libraries of a program, as its own loader finds them."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

_FOUND = re.compile(r"(?:=> )?(/\S+) \(0x")


def found(ldd: str) -> set[Path]:
    """The files in the output of ldd(1), without those that it did not find."""
    return {Path(path) for path in _FOUND.findall(ldd)}


def of(programs: Iterable[Path]) -> set[Path]:
    """The libraries of all these files, the loader included. A file that is not dynamic has none."""
    paths = [str(path) for path in programs]
    if not paths:
        return set()
    return found(subprocess.run(["ldd", *paths], capture_output=True, text=True, timeout=120).stdout)
