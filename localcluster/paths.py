"""The directories: the build cache, which all clusters and clones share, and one state directory per cluster.

Both are outside of the work tree. `GPUSHARE_CACHE` and `GPUSHARE_STATE` set other places.
"""

import os
import re
import stat
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


def require_own(root: Path) -> None:
    """Raises LocalClusterError where `root` exists and is anybody's but ours alone to write in.

    It has a known name in a directory for everybody. Who was there first could plant a cluster's record, or programs
    and settings that we would start as root.
    """
    try:
        found = root.lstat()
    except FileNotFoundError:
        return
    wrong = ""
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is no directory"
    elif found.st_uid != os.geteuid():
        wrong = f"belongs to UID {found.st_uid}"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = f"can be written by others (mode {stat.S_IMODE(found.st_mode):o})"
    if wrong:
        raise LocalClusterError(f"{root} {wrong}: remove it, or set GPUSHARE_STATE to a directory of your own")


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
