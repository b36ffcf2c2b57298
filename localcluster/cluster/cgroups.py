"""The cluster's cgroup in every hierarchy of the machine, version 1, 2 or hybrid; nothing else is touched."""

import time
from pathlib import Path

_V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "hugetlb", "io")


Hierarchy = tuple[str, Path]


def hierarchies(mountinfo: str) -> list[Hierarchy]:
    """(`cgroup` or `cgroup2`, mount point) for every cgroup mount. Format: proc_pid_mountinfo(5)."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind = after.split()[0]
        if kind in ("cgroup", "cgroup2"):
            found.append((kind, Path(before.split()[4])))
    return found


def used_by_pods(found: list[Hierarchy]) -> list[Hierarchy]:
    """In a hybrid machine version 1 has the controllers; runc may still leave a directory in the `cgroup2` mount."""
    return [entry for entry in found if entry[0] == "cgroup"] or found


def create(cgroup: str) -> None:
    """Makes the cgroup everywhere: the kubelet wants its root to exist."""
    for kind, mount in used_by_pods(_here()):
        if kind == "cgroup2":
            _delegate(mount)
        (mount / cgroup).mkdir(exist_ok=True)
        if kind == "cgroup2":
            _delegate(mount / cgroup)


def _delegate(directory: Path) -> None:
    """Offers every available controller to the children; one that is refused shows as the kubelet's own complaint."""
    available = (directory / "cgroup.controllers").read_text().split()
    for controller in set(available) & set(_V2_CONTROLLERS):
        try:
            (directory / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError:
            continue


def remove(cgroup: str) -> None:
    """Removes the cgroup and all below it once their processes are gone; waits up to 5 s for the kernel."""
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
