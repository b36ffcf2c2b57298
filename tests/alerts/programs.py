"""Runs promtool and Helm."""

import subprocess
from pathlib import Path


def run(*argv: str | Path) -> str:
    """What the command says; a failure is told with all of it."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
