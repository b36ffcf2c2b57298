"""Which container a process is in, by the file that the kubelet mounted: the real one, and what looks like it."""

import os
import subprocess
from pathlib import Path

import pytest

from gpushare.process import termination_log
from gpushare.process.procfs import Owner
from gpushare.process.termination_log import PodsDirectory, named_container, pods_directory, read_named_owners

UID, OTHER = "0a1b2c3d-1111-2222-3333-444455556666", "99999999-1111-2222-3333-444455556666"
PODS = PodsDirectory(b"8:1", b"/var/lib/kubelet/pods/")
LOG = "/dev/termination-log"


def mount(root: str, point: str = LOG, device: str = "8:1") -> bytes:
    return f"812 790 {device} {root} {point} rw,relatime - ext4 /dev/sda1 rw".encode()


def file_of(container: str, uid: str = UID, pods: str = "/var/lib/kubelet/pods") -> str:
    return f"{pods}/{uid}/containers/{container}/1f2e3d4c"


ROOT = b"790 700 0:52 / / rw - overlay overlay rw,lowerdir=/a:/b"
HOSTS = mount(f"/var/lib/kubelet/pods/{UID}/etc-hosts", "/etc/hosts")


@pytest.mark.parametrize(
    ("mounted", "named"),
    [
        ([file_of("app")], "app"),
        ([], ""),
        ([file_of("app", OTHER)], ""),
        ([file_of("app"), file_of("app").replace("1f2e", "0000")], "app"),
        ([file_of("app"), file_of("beside")], ""),
        ([file_of("app") + "//deleted"], ""),
        ([f"/var/lib/kubelet/pods/{UID}/containers/app"], ""),
        ([f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/v{file_of('app')}"], ""),
        ([f"/var/lib/kubelet/pods/{UID}/volume-subpaths/containers/app/0"], ""),
        ([f"/pods/{UID}/containers/app/1f2e3d4c"], ""),
    ],
    ids=[
        "the kubelet's file",
        "none",
        "another pod's",
        "two of one container",
        "two containers'",
        "a file that was removed",
        "the directory of such files",
        "the same path in a volume",
        "a path within a volume",
        "the same path elsewhere on the node",
    ],
)
def test_the_kubelets_file_alone_names_a_container(mounted: list[str], named: str) -> None:
    assert named_container([ROOT, HOSTS, *map(mount, mounted), b"short"], PODS, UID) == named


FORGER = """
set -e
mount -t tmpfs none "$1"
mkdir -p "$1$2"
touch "$1$2/log" "$1/mine"
mount --bind "$1$2/log" "$1/mine"
! mount --bind "/proc/$PPID/root$3" "$1/mine" 2>/dev/null
cat /proc/self/mountinfo
"""
"""$1: a directory of its own. $2: the path that it forges. $3: a file of another container, whose process it sees."""


def test_no_mount_of_a_tenants_own_names_a_container(tmp_path: Path) -> None:
    """A process that made namespaces mounts a tmpfs, makes the kubelet's path there, and mounts a file of it; and it
    takes another container's file through /proc, which the kernel refuses.
    """
    other = tmp_path / "log"
    other.touch()
    own = tmp_path / "own"
    own.mkdir()
    path = f"/var/lib/kubelet/pods/{UID}/containers/app"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FORGER, "forger", own, path, other]
    forged = subprocess.run(command, capture_output=True, check=True, timeout=10).stdout
    assert f" {path}/log {own}/mine ".encode() in forged, "the attack was not carried out"
    assert str(other).encode() not in forged
    assert named_container(forged.split(b"\n"), PODS, UID) == ""


@pytest.mark.parametrize("pods", ["/pods", "/var/lib/kubelet/pods", "/mnt/kubelet\\040dir/pods"])
def test_the_directory_of_pods_is_known_by_a_mount_of_our_own(pods: str) -> None:
    """It may be a file system of its own, or anywhere (--root-dir)."""
    lines = [ROOT, HOSTS, mount(file_of("mps", OTHER, pods))]
    known = pods_directory(lines)
    assert known == PodsDirectory(b"8:1", pods.encode() + b"/")
    assert named_container([mount(file_of("app", pods=pods))], known, UID) == "app"


@pytest.mark.parametrize(
    "line", [ROOT, HOSTS, mount(file_of("mps"), "/tmp/log"), mount("/any/file")], ids=["root", "hosts", "point", "file"]
)
def test_without_such_a_mount_of_our_own_the_directory_is_not_known(line: bytes) -> None:
    assert pods_directory([line]) is None


@pytest.mark.parametrize(
    ("mounts", "named"), [(1, "app"), (termination_log.MAX_MOUNTINFO_BYTES // 60, "")], ids=["few", "too many"]
)
def test_a_process_makes_nobody_read_as_many_mounts_as_it_likes(tmp_path: Path, mounts: int, named: str) -> None:
    of_process = tmp_path / str(os.getpid())
    of_process.mkdir()
    (of_process / "cgroup").write_text(f"0::/kubepods/pod{UID}/{'ab' * 32}")
    (of_process / "mountinfo").write_bytes(b"\n".join([mount(file_of("app")), *[mount("/any")] * mounts]))
    owners = read_named_owners(os.getpid(), tmp_path, PODS)
    assert owners == (Owner(UID, "ab" * 32),)
    assert [owner.container for owner in owners or ()] == [named]


def test_a_process_that_has_ended_is_of_no_pod(tmp_path: Path) -> None:
    assert read_named_owners(1, tmp_path) is None
