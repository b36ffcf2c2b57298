"""The Debian packages that the build and the cluster need. Only missing ones are installed, after a message.

If all tools are there nothing is done, so machines without Debian work too.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from localcluster.cache import locked
from localcluster.errors import LocalClusterError
from localcluster.progress import run_long, say

# The tool that makes a package unnecessary -> the package.
_COMMANDS = {
    "ip": "iproute2",
    "nft": "nftables",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "mount": "mount",
    "pkg-config": "pkg-config",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}
_PKG_CONFIG = {"libseccomp": "libseccomp-dev"}
_PYTHON_MODULES = {"ensurepip": "python3-venv"}
_FILES = {"/etc/ssl/certs/ca-certificates.crt": "ca-certificates"}


def missing_packages(
    has_command: Callable[[str], bool],
    has_library: Callable[[str], bool],
    has_module: Callable[[str], bool],
    has_file: Callable[[str], bool],
) -> list[str]:
    """The packages, sorted, of all tools that their probe does not find."""
    probes = ((_COMMANDS, has_command), (_PKG_CONFIG, has_library), (_PYTHON_MODULES, has_module), (_FILES, has_file))
    return sorted(package for tools, has in probes for tool, package in tools.items() if not has(tool))


def ensure_packages(cache: Path) -> None:
    """Installs the missing packages with apt-get. Raises LocalClusterError if that is not possible."""
    if not (missing := missing_here()):
        return
    names = " ".join(missing)
    if not shutil.which("apt-get"):
        raise LocalClusterError(f"missing tools of the Debian packages {names}: install them with your package manager")
    if os.geteuid() != 0:
        raise LocalClusterError(f"missing packages: run as root: apt-get install {names}")
    say(f"installing missing Debian packages: {names}")
    with locked(cache / "apt.lock"):
        _install(missing, cache / "logs" / "apt.log")
    if still := missing_here():
        raise LocalClusterError(f"apt-get installed {names}, but the tools of {' '.join(still)} are still not found")


def _install(packages: list[str], log: Path) -> None:
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    install = ["apt-get", "install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", *packages]
    try:
        run_long("apt-get install", install, log, limit_s=900, env=env)
    except LocalClusterError:
        run_long("apt-get update", ["apt-get", "update"], log, limit_s=600, env=env)
        run_long("apt-get install", install, log, limit_s=900, env=env)


def missing_here() -> list[str]:
    """The packages that this machine lacks, sorted."""
    return missing_packages(_has_command, _has_library, lambda m: find_spec(m) is not None, lambda f: Path(f).exists())


def _has_command(name: str) -> bool:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is not None


def _has_library(name: str) -> bool:
    if not shutil.which("pkg-config"):
        return False
    return subprocess.run(["pkg-config", "--exists", name], timeout=30).returncode == 0
