"""Which shared libraries a program needs, as its own loader finds them."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

_FOUND = re.compile(r"(?:=> )?(/\S+) \(0x")


def found(ldd: str) -> set[Path]:
    """The files in what ldd(1) printed; what it did not find is not there."""
    return {Path(path) for path in _FOUND.findall(ldd)}


def of(programs: Iterable[Path]) -> set[Path]:
    """Libraries of all of them, the loader included; a file that is not dynamic needs none."""
    paths = [str(path) for path in programs]
    if not paths:
        return set()
    return found(subprocess.run(["ldd", *paths], capture_output=True, text=True, timeout=120).stdout)
