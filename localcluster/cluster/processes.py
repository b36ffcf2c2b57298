"""The cluster's processes, read from the machine's /proc. PIDs are those of the machine."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from localcluster.cluster.components import FIRST, THEN
from localcluster.cluster.layout import Layout
from localcluster.errors import LocalClusterError

_MARKER = b"localcluster.cluster.node"


@dataclass(frozen=True)
class LocalProcess:
    """A process of the cluster; `rss_bytes` is its resident memory, shared pages included."""

    pid: int
    name: str
    rss_bytes: int


def holder(layout: Layout) -> int | None:
    """The PID of `unshare`, which started the namespaces and lives as long as they do; None if the cluster is down."""
    try:
        pid = int((layout.state / "pid").read_text())
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return (
        pid
        if arguments[0].endswith(b"unshare") and _MARKER in arguments and layout.name.encode() in arguments
        else None
    )


def init(layout: Layout) -> int | None:
    """The machine's PID of pid 1 of the namespaces; None if the cluster is down."""
    pid = holder(layout)
    children = _children(pid) if pid else []
    return children[0] if children else None


def components(layout: Layout) -> dict[str, LocalProcess]:
    """The running components by name: children of pid 1, without orphaned containers."""
    first = init(layout)
    described = [_describe(pid) for pid in (_children(first) if first else [])]
    return {process.name: process for process in described if process and process.name in FIRST + THEN}


def everything(layout: Layout) -> list[LocalProcess]:
    """All processes in the cluster's namespaces, by PID."""
    first = init(layout)
    if first is None:
        return []
    namespace = _mount_namespace(first)
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    below = set(_descendants(first))
    inside = [pid for pid in pids if pid in below or _mount_namespace(pid) == namespace]
    return [process for pid in inside if (process := _describe(pid))]


def replace(layout: Layout, name: str, signal_number: signal.Signals, limit_s: float = 30) -> tuple[int, int]:
    """Signals a component and waits until pid 1 has restarted it. Returns the old and the new PID.

    Raises LocalClusterError if it does not run or is not restarted in time.
    """
    if (old := components(layout).get(name)) is None:
        raise LocalClusterError(
            f"{name} does not run in cluster {layout.name!r}; it has {', '.join(components(layout))}"
        )
    os.kill(old.pid, signal_number)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        new = components(layout).get(name)
        if new is not None and new.pid != old.pid:
            return old.pid, new.pid
        time.sleep(0.05)
    raise LocalClusterError(
        f"{name} (PID {old.pid}) was not replaced within {limit_s:.0f} s; see {layout.logs}/{name}.log"
    )


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _descendants(pid: int) -> list[int]:
    children = _children(pid)
    return [pid] + [descendant for child in children for descendant in _descendants(child)]


def _mount_namespace(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/ns/mnt").readlink()
    except OSError:
        return None


def _describe(pid: int) -> LocalProcess | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return LocalProcess(pid, Path(command).name, pages * os.sysconf("SC_PAGE_SIZE"))
