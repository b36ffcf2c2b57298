"""The cluster's cgroup in all hierarchies of the machine: version 1, 2 or hybrid. No other cgroup is changed."""

import time
from pathlib import Path

_V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "hugetlb", "io")


Hierarchy = tuple[str, Path]


def hierarchies(mountinfo: str) -> list[Hierarchy]:
    """(`cgroup` or `cgroup2`, mount point) for every cgroup mount. Format: proc_pid_mountinfo(5)."""
    mounts = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind = after.split()[0]
        if kind in ("cgroup", "cgroup2"):
            mounts.append((kind, Path(before.split()[4])))
    return mounts


def used_by_pods(mounts: list[Hierarchy]) -> list[Hierarchy]:
    """The hierarchies with controllers: on a hybrid machine those of version 1.

    There runc may still leave a directory in the `cgroup2` mount, which is why `remove` looks at all hierarchies.
    """
    return [entry for entry in mounts if entry[0] == "cgroup"] or mounts


def create(cgroup: str) -> None:
    """Creates the cgroup in all hierarchies, because the kubelet expects its root to exist."""
    for kind, mount in used_by_pods(_here()):
        if kind == "cgroup2":
            _delegate(mount)
        (mount / cgroup).mkdir(exist_ok=True)
        if kind == "cgroup2":
            _delegate(mount / cgroup)


def _delegate(directory: Path) -> None:
    """Enables all available controllers for the children. If the kernel refuses one, the kubelet reports it."""
    available = (directory / "cgroup.controllers").read_text().split()
    for controller in set(available) & set(_V2_CONTROLLERS):
        try:
            (directory / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError:
            continue


def remove(cgroup: str) -> None:
    """Removes the cgroup and all below it, once their processes are gone. Waits up to 5 s for the kernel."""
    for _, mount in _here():
        root = mount / cgroup
        if not root.is_dir():
            continue
        below = sorted((path for path in root.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
        for directory in [*below, root]:
            _rmdir(directory)


def _rmdir(directory: Path) -> None:
    end = time.monotonic() + 5
    while True:
        try:
            directory.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _here() -> list[Hierarchy]:
    return hierarchies(Path("/proc/self/mountinfo").read_text())
