"""Whether a mount namespace is the runtime's or a process' own, by the kernel of this machine."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.agent.process.namespaces import read_mount_depth


@contextmanager
def program(*command: str) -> Iterator[int]:
    """The PID of a program that runs as long as its input is open; `command` goes before it."""
    wait = ["sh", "-c", "echo up; cat"]
    with subprocess.Popen([*command, *wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline() != b"up\n":
            pytest.skip(f"{command[0]} may not do that here")
        yield child.pid
        child.stdin.close()


@pytest.mark.parametrize(
    ("command", "depth"),
    [
        pytest.param([], 0, id="where its parent is"),
        pytest.param(["unshare", "--map-root-user"], 0, id="with a user namespace of its own alone"),
        pytest.param(["unshare", "--map-root-user", "--mount"], 1, id="with a mount namespace of its own"),
        pytest.param(
            ["unshare", "--map-root-user", "unshare", "--map-root-user", "--mount"],
            2,
            id="and a user namespace between",
        ),
    ],
)
def test_the_depth_is_that_of_the_user_namespace_that_owns_the_mounts(command: list[str], depth: int) -> None:
    with program(*command) as pid:
        assert read_mount_depth(pid) == depth


def test_a_process_that_has_ended_has_no_depth(tmp_path: Path) -> None:
    assert read_mount_depth(1, tmp_path) is None


def test_no_descriptor_is_left_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with program("unshare", "--map-root-user", "--mount") as pid:
        for _ in range(5):
            read_mount_depth(pid)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
