"""Tells whether a directory can carry overlay mounts: a container's root file system, itself an overlay, cannot."""

import subprocess
import tempfile
from pathlib import Path


def works_in(directory: Path) -> bool:
    """Tries a mount below `directory`, in a mount namespace of its own."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        for name in ("lower", "upper", "work", "merged"):
            (Path(scratch) / name).mkdir()
        options = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work"
        mount = ["mount", "-t", "overlay", "overlay", "-o", options, f"{scratch}/merged"]
        result = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", *mount], capture_output=True, timeout=30
        )
    return result.returncode == 0
