"""Which ancestor, if any, takes a process along when its container gets SIGTERM: only the main process is sent it."""

import os
import subprocess
import sys
from pathlib import Path
from signal import SIGTERM

import pytest

from gpushare.agent.process.processes import Ancestor, ancestors, fatal_ancestor
from gpushare.process.procfs import Owner
from tests.unit.agent.departing_pods import CONTAINER, uid

OWNER = Owner(uid(1), CONTAINER)


def ancestor(pid: int, does: str, first: bool = False) -> Ancestor:
    return Ancestor(pid, acts=does == "acts", ignores=does == "ignores", first=first)


@pytest.mark.parametrize(
    ("chain", "fatal"),
    [
        pytest.param([], None, id="the container's main process itself"),
        pytest.param([ancestor(9, "acts", first=True)], None, id="below tini, or a launcher that cares"),
        pytest.param([ancestor(9, "dies", first=True)], None, id="below a shell as PID 1, which gets no SIGTERM"),
        pytest.param([ancestor(8, "dies"), ancestor(9, "dies", first=True)], None, id="and further below it"),
        pytest.param([ancestor(8, "dies"), ancestor(9, "acts", first=True)], 8, id="below a shell below tini"),
        pytest.param([ancestor(8, "acts"), ancestor(9, "acts", first=True)], None, id="below a launcher below tini"),
        pytest.param([ancestor(9, "dies")], 9, id="a main process that is no PID 1, in a shared PID namespace"),
        pytest.param([ancestor(8, "dies"), ancestor(9, "ignores")], None, id="below one that ignores it"),
    ],
)
def test_a_process_is_taken_along_by_the_ancestor_that_dies_of_sigterm(chain: list[Ancestor], fatal: int) -> None:
    assert fatal_ancestor(chain) == fatal


def entry(proc: Path, pid: int, parent: int, inside: int, caught: int = 0, blocked: int = 0, pod: int = 1) -> None:
    directory = proc / str(pid)
    directory.mkdir()
    (directory / "cgroup").write_text(f"0::/kubepods/burstable/pod{uid(pod)}/{CONTAINER}\n")
    masks = f"SigBlk:\t{blocked:016x}\nSigIgn:\t0000000000000000\nSigCgt:\t{caught:016x}\n"
    (directory / "status").write_text(f"Name:\tx\nPPid:\t{parent}\nNSpid:\t{pid}\t{inside}\n{masks}")


def test_the_ancestors_end_with_the_container(tmp_path: Path) -> None:
    entry(tmp_path, 50, parent=1, inside=50, pod=2)  # the runtime's shim is in no pod, or in another one
    entry(tmp_path, 60, parent=50, inside=1, blocked=0x4000)
    entry(tmp_path, 61, parent=60, inside=7)
    entry(tmp_path, 62, parent=61, inside=8, caught=0x4000)
    chain = ancestors(62, OWNER, SIGTERM, tmp_path)
    assert chain == [ancestor(61, "dies"), ancestor(60, "acts", first=True)]
    assert fatal_ancestor(chain) == 61


def test_a_process_that_has_ended_has_no_ancestors(tmp_path: Path) -> None:
    assert ancestors(62, OWNER, SIGTERM, tmp_path) == []


def test_a_real_shell_is_seen_to_die_of_sigterm(tmp_path: Path) -> None:
    """`proc` is the machine's own, but for the cgroup: these processes are in no pod."""
    program = "import signal, sys; signal.signal(signal.SIGTERM, print); print('up', flush=True); sys.stdin.read()"
    command = ["sh", "-c", f'{sys.executable} -c "{program}"; true']
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        assert shell.stdin is not None
        shell.stdout.readline()
        [child] = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
        for pid in (child, str(shell.pid)):
            (tmp_path / pid).mkdir()
            (tmp_path / pid / "status").symlink_to(f"/proc/{pid}/status")
            (tmp_path / pid / "cgroup").write_text(f"0::/kubepods/pod{uid(1)}/{CONTAINER}\n")
        dies = fatal_ancestor(ancestors(int(child), OWNER, SIGTERM, tmp_path))
        shell.stdin.close()
    assert dies == shell.pid
    assert os.getpid() != dies
