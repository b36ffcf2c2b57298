"""Programs to compare: short scripts that print figures, and what is left of them."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.workload.bench.conftest import gpu

__all__ = ["gpu"]

Write = Callable[[str], tuple[str, ...]]


@pytest.fixture
def script(tmp_path: Path) -> Write:
    """`script(text)`: the command of a program of that text; it prints figures by `figure(**fields)`."""
    head = (
        "import json, os, signal, subprocess, sys, time\n"
        "def figure(**fields):\n"
        "    print(json.dumps(fields), flush=True)\n"
        "def forever():\n"
        "    while True:\n"
        "        figure(rate=100, ms=[1.0, 2.0])\n"
        "        time.sleep(0.05)\n"
    )

    def write(text: str) -> tuple[str, ...]:
        path = tmp_path / f"program-{len(list(tmp_path.glob('program-*')))}.py"
        path.write_text(head + text)
        return sys.executable, str(path)

    return write


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Fails a test that leaves a process with a script of its own."""
    yield
    assert running(tmp_path) == []


def running(folder: Path) -> list[int]:
    """PIDs of processes that run a script of that folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{folder}/program-".encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
