"""Checks whether this machine can build and run a cluster. Each failed check gives one line with its remedy."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.estimate import FIRST_RUN_GIGABYTES
from localcluster.paths import cache_root, state_root
from localcluster.programs.build import binaries

_FIRST_BUILD_BYTES = int(FIRST_RUN_GIGABYTES * 1e9)
_LATER_BYTES = 3 << 30
_ARCHITECTURES = ("x86_64", "aarch64")


def problems() -> list[str]:
    """One line per failed check, in the order in which to solve them; empty if there is none."""
    return [line for check in _CHECKS if (line := check()) is not None]


def require() -> None:
    """Raises LocalClusterError with all problems, one line each."""
    if missing := problems():
        raise LocalClusterError("\n".join(missing))


def _linux() -> str | None:
    if sys.platform != "linux":
        return f"the local cluster needs Linux, not {sys.platform}: use a Linux machine, or set KUBECONFIG to a cluster"
    if platform.machine() not in _ARCHITECTURES:
        return f"architecture {platform.machine()} is not supported: use one of {', '.join(_ARCHITECTURES)}"
    return None


def _root() -> str | None:
    if os.geteuid() != 0:
        return (
            "the local cluster needs root for namespaces and mounts: run it with sudo, or set KUBECONFIG to a cluster"
        )
    return None


def _compiler() -> str | None:
    if not shutil.which("cc") and not shutil.which("gcc"):
        return "no C compiler (cc or gcc) in PATH: apt-get install gcc libc6-dev"
    return None


def _namespaces() -> str | None:
    if os.geteuid() != 0:
        return None
    if not shutil.which("unshare"):
        return "the command unshare is missing: apt-get install util-linux"
    argv = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "true"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    if result.returncode != 0:
        return f"this machine refuses namespaces ({result.stderr.strip()}): use a virtual or privileged machine"
    return None


def _disk() -> str | None:
    cache = cache_root()
    for_build = _LATER_BYTES if binaries(cache).kube.exists() else _FIRST_BUILD_BYTES
    places = (("GPUSHARE_CACHE", cache, for_build), ("GPUSHARE_STATE", state_root(), _LATER_BYTES))
    for variable, path, needed in places:
        free = shutil.disk_usage(_existing(path)).free
        if free < needed:
            return (
                f"{path} has {free / (1 << 30):.1f} GiB free, less than {needed / (1 << 30):.1f} GiB: "
                f"make room or set {variable} to another disk"
            )
    return None


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


_CHECKS: tuple[Callable[[], str | None], ...] = (_linux, _root, _compiler, _namespaces, _disk)
