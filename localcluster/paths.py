"""The directories: the build cache, which all clusters and clones share, and one state directory per cluster.

Both are outside of the work tree. `GPUSHARE_CACHE` and `GPUSHARE_STATE` set other places.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from localcluster.errors import LocalClusterError

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = Path(__file__).resolve().parent / "programs"

# A unix socket's path must fit 108 bytes with its NUL; containerd appends ".ttrpc" to its own.
_SOCKET_PATH_MAX = 100
_LONGEST_SOCKET = "kubelet/device-plugins/gpushare-00000000.sock"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,15}")


def cache_root(env: Mapping[str, str] = os.environ) -> Path:
    """`$GPUSHARE_CACHE`, else `gpushare` under the XDG cache directory."""
    if chosen := env.get("GPUSHARE_CACHE"):
        return Path(chosen).absolute()
    home = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or "/root") / ".cache")
    return Path(home).absolute() / "gpushare"


def state_root(env: Mapping[str, str] = os.environ) -> Path:
    """`$GPUSHARE_STATE`, else /var/tmp/gpushare: on disk, not in a tmpfs, because images are unpacked there."""
    return Path(env.get("GPUSHARE_STATE") or "/var/tmp/gpushare").absolute()


def state_dir(name: str, env: Mapping[str, str] = os.environ) -> Path:
    """The cluster's own directory.

    Raises LocalClusterError if the name is unusable or the path is too long for the sockets beneath it.
    """
    if not _NAME.fullmatch(name):
        raise LocalClusterError(f"cluster name {name!r} must match {_NAME.pattern}: choose another --name")
    state = state_root(env) / name
    longest = len(os.fsencode(state / _LONGEST_SOCKET))
    if longest > _SOCKET_PATH_MAX:
        raise LocalClusterError(
            f"GPUSHARE_STATE={state.parent} makes socket paths of {longest} bytes, more than {_SOCKET_PATH_MAX}: "
            "choose a shorter directory"
        )
    return state
