"""Small files that two processes share through a directory: replaced as a whole, and read without exceptions.

Guarantees: a reader sees the old content or the new one, never a part. A file that is absent, torn, too large, not JSON
or invalid reads as "no value", with a sentence that says why. What a writer left behind that was killed in the middle
goes with the next process that writes in its directory. Not guaranteed: durability over a power cut; the directory is
made anew after a reboot anyway.
"""

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic

from gpushare.mps.wire import InvalidError, Model, WireModel, decode, encode
from gpushare.process.bounded_read import BoundExceededError, read_regular

MAX_BYTES = 256 * 1024
"""More than any file of ours holds; a larger one is not ours."""

READABLE = 0o644
"""The mode of a file that agent and broker share: they run as two users. A client's container sees no such file."""
UNFINISHED = ".gpushare-new"
"""How the names of files end that are being written: in a directory of others nobody else's look like it."""
_STARTED = time.time()

FileVersion = tuple[int, int]
"""(inode, time of the last change in ns)."""


@dataclass(frozen=True, slots=True)
class Read(Generic[Model]):
    """`value`, or None with a sentence as `reason`. `absent`: there is no file; else the file is invalid."""

    value: Model | None
    reason: str = ""
    absent: bool = False


def write_model(path: Path, model: WireModel, mode: int = 0o600) -> None:
    """Replace `path` by `model` as JSON. Raises OSError."""
    write_bytes(path, encode(model), mode)


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace `path` by `text` atomically, with permissions `mode`. OSError, of `path`: it is unchanged."""
    write_bytes(path, text.encode(), mode)


def write_bytes(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Writes bytes as `write_text` does text."""
    try:
        _replace(path, content, mode)
    except OSError as error:
        # Not of the temporary file: its name is another one each time, and each would be news.
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, content: bytes, mode: int) -> None:
    _remove_unfinished(path.parent)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@lru_cache(maxsize=256)
def _remove_unfinished(directory: Path) -> None:
    """Removes what earlier processes left half written; once for each directory."""
    with suppress(OSError):  # such as a directory that is not ours to read
        for file in directory.glob(f".*{UNFINISHED}"):
            if file.lstat().st_mtime < _STARTED:
                file.unlink(missing_ok=True)


def file_version(path: Path) -> FileVersion | None:
    """Another one after each replacement of the file; None: it is not there, or cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def inode_of(path: Path) -> int:
    """0: it is not there, or cannot be looked at."""
    version = file_version(path)
    return 0 if version is None else version[0]


def read_model(path: Path, model: type[Model]) -> Read[Model]:
    """The JSON in `path` as `model`. Never raises, whatever the file is or contains."""
    try:
        content = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        return Read(None, f"{path} is not there", absent=True)
    except BoundExceededError:
        return Read(None, f"{path} is larger than {MAX_BYTES} bytes")
    except OSError as error:
        return Read(None, f"{path} cannot be read: {error.strerror or error}")
    try:
        return Read(decode(content, model))
    except InvalidError as error:
        return Read(None, f"{path}: {error}")


class ModelFiles:
    """Reads each file again only after it was replaced: until then a reading is the same object as the one before."""

    def __init__(self, read: Callable[[Path, type[Any]], Read[Any]] = read_model) -> None:
        self._read = read
        self._known: dict[Path, tuple[FileVersion, Read[Any]]] = {}

    def read(self, path: Path, model: type[Model]) -> Read[Model]:
        """Reads as `read_model` does."""
        version = file_version(path)  # before the file is read: what replaces it meanwhile is read the next time
        known = self._known.get(path)
        if version is not None and known is not None and known[0] == version:
            return known[1]
        result: Read[Model] = self._read(path, model)
        if version is not None and result.value is not None:
            self._known[path] = version, result
        else:
            self._known.pop(path, None)
        return result
