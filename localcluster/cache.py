"""A cache of builds: directories whose names contain the hash of all inputs.

Guarantees: an entry exists completely or not at all (it is built aside, then renamed). Concurrent builders of one entry
wait for each other. Entries never change afterwards.
"""

import fcntl
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_IGNORED_DIRECTORIES = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"}


def key_of(files: Iterable[tuple[str, bytes]], *parts: str) -> str:
    """16 hex digits: a hash of names, contents and extra parts (flags, versions), and of nothing else."""
    digest = hashlib.sha256()
    for label, content in sorted(files):
        digest.update(f"{label}\0{len(content)}\0".encode())
        digest.update(content)
    for part in parts:
        digest.update(f"\0{len(part)}\0{part}".encode())
    return digest.hexdigest()[:16]


def contents(root: Path, paths: Iterable[str]) -> list[tuple[str, bytes]]:
    """(relative name, content) of all files under `paths`, which are files or directories of `root`; no byte code."""
    files: dict[str, bytes] = {}
    for path in paths:
        start = root / path
        for file in [start] if start.is_file() else sorted(start.rglob("*")):
            relative = file.relative_to(root)
            if file.is_file() and not _is_by_product(relative):
                files[str(relative)] = file.read_bytes()
    return list(files.items())


def _is_by_product(relative: Path) -> bool:
    return any(part in _IGNORED_DIRECTORIES or part.endswith(".egg-info") for part in relative.parts)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on the file `path` against other processes. It ends with the process at the latest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build_once(entry: Path, build: Callable[[Path], None]) -> Path:
    """Returns `entry`. If it does not exist, `build(directory)` is called first to fill it."""
    if entry.exists():
        return entry
    with locked(entry.with_name(entry.name.rpartition("-")[0] + ".lock")):
        if entry.exists():
            return entry
        aside = Path(tempfile.mkdtemp(prefix=entry.name + ".", suffix=".tmp", dir=entry.parent))
        try:
            build(aside)
            aside.chmod(0o755)
            aside.rename(entry)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    return entry


def keep_newest(entries: Iterable[Path], count: int, idle_s: float = 0.0) -> list[Path]:
    """Removes all but the `count` last used entries (by modification time). Returns the removed ones.

    An entry that was used within the last `idle_s` seconds stays, because another process may be reading it.
    """
    ordered = sorted(((_used_at(entry), entry) for entry in entries), reverse=True)
    removed = [entry for used, entry in ordered[count:] if time.time() - used >= idle_s]
    for entry in removed:
        shutil.rmtree(entry, ignore_errors=True)
    return removed


def _used_at(entry: Path) -> float:
    """0 for an entry that another process has just removed."""
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return 0.0
