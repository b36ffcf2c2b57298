"""A file system that is soon full: a tmpfs of the test's own, which only root may mount."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size: str = "512k") -> Iterator[None]:
    """Mounted at `path` while the context is open. Skips the test where nothing may be mounted."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "gpushare-test", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, timeout=20).returncode != 0:
        pytest.skip("no tmpfs may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=20)


@contextmanager
def no_room(path: Path) -> Iterator[None]:
    """Nothing can be written there while the context is open."""
    filler = path / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        yield
    finally:
        filler.unlink()


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """The file system at `path` is, while the context is open, as the kernel leaves one that has errors."""
    _remount(path, "ro")
    try:
        yield
    finally:
        _remount(path, "rw")


def _remount(path: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(path)], check=True, capture_output=True, timeout=20)
