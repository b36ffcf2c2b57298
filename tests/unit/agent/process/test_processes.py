"""Which pod a process belongs to, and whether it catches SIGTERM: /proc as kubelets and runtimes write it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.agent.process import processes, signals
from gpushare.agent.process.processes import Process, ancestors
from gpushare.mps.supervisor.daemon_process import command_name
from gpushare.process import procfs
from gpushare.process.procfs import Owner

UID = "0a1b2c3d-1111-2222-3333-444455556666"
BAR = UID.replace("-", "_")
CID = "ab" * 32
OTHER = "cd" * 32
BOTH = Owner(UID, CID)


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        pytest.param(f"0::/kubepods/burstable/pod{UID}/{CID}", BOTH, id="v2, cgroupfs, burstable"),
        pytest.param(f"0::/kubepods/besteffort/pod{UID}/{CID}", BOTH, id="v2, cgroupfs, best effort"),
        pytest.param(f"0::/kubepods/pod{UID}/{CID}", BOTH, id="v2, cgroupfs, guaranteed has no folder of its own"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{BAR}.slice/cri-containerd-{CID}.scope",
            BOTH,
            id="v2, systemd, containerd",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{BAR}.slice/crio-{CID}.scope", BOTH, id="v2, systemd, CRI-O, guaranteed"
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{BAR}.slice/crio-{CID}.scope/container", BOTH, id="v2, crun's inner cgroup"
        ),
        pytest.param(f"0::/kubepods.slice/kubepods-pod{BAR}.slice/docker-{CID}.scope", BOTH, id="v2, systemd, Docker"),
        pytest.param(
            f"0::/../../kubepods-burstable-pod{BAR}.slice/cri-containerd-{CID}.scope", BOTH, id="v2, cgroup namespace"
        ),
        pytest.param(f"0::/../../pod{UID}/{CID}", BOTH, id="v2, cgroupfs, cgroup namespace"),
        pytest.param(f"0::/edge/node/kubepods/burstable/pod{UID}/{CID}", BOTH, id="a cgroup root, cgroupfs"),
        pytest.param(
            f"0::/edge.slice/edge-kubepods.slice/edge-kubepods-burstable.slice/edge-kubepods-burstable-pod{BAR}.slice"
            f"/cri-containerd-{CID}.scope",
            BOTH,
            id="a cgroup root, systemd",
        ),
        pytest.param(
            f"12:memory:/kubepods/burstable/pod{UID}/{CID}\n3:cpu,cpuacct:/kubepods/burstable/pod{UID}/{CID}\n0::/\n",
            BOTH,
            id="v1, cgroupfs",
        ),
        pytest.param(
            f"0::/\n9:name=systemd:/kubepods.slice/kubepods-pod{BAR}.slice/cri-containerd-{CID}.scope\n",
            BOTH,
            id="v1 hybrid, systemd",
        ),
        pytest.param(
            f"11:cpu:/system.slice/containerd.service/kubepods-burstable-pod{BAR}.slice:cri-containerd:{CID}",
            BOTH,
            id="drivers that differ",
        ),
        pytest.param(f"0::/kubepods/pod{UID}/{CID}/system.slice/a.service", BOTH, id="systemd in the container"),
        pytest.param(
            f"0::/kubepods/pod99999999-1111-2222-3333-444455556666/{OTHER}/kubepods/pod{UID}/{CID}",
            BOTH,
            id="a cluster in a pod: the inner one",
        ),
        pytest.param(
            "0::/kubepods/burstable/pod0123456789abcdef0123456789abcdef/" + CID,
            Owner("0123456789abcdef0123456789abcdef", CID),
            id="a static pod",
        ),
        pytest.param(f"0::/kubepods/burstable/pod{UID}", Owner(UID, ""), id="no container yet"),
        pytest.param("0::/system.slice/ssh.service", None, id="a service of the host"),
        pytest.param("0::/", None, id="the root"),
        pytest.param("", None, id="no line"),
        pytest.param("0::/user.slice/podman-1234.scope/pod", None, id="something called pod"),
    ],
)
def test_the_pod_of_a_process(text: str, owner: Owner | None) -> None:
    assert procfs.owners_of(text)[-1:] == (() if owner is None else (owner,))


GROUPS = "Groups:\t" + " ".join(str(4_000_000_000 + number) for number in range(65_536)) + " \n"


@pytest.mark.parametrize(
    ("status", "caught"),
    [
        ("Name:\tpython\nSigIgn:\t0000000001001000\nSigCgt:\t0000000180004002\n", True),
        ("SigIgn:\t0000000000004000\nSigCgt:\t0000000180000002\n", False),
        ("SigCgt:\t0000000000000000\n", False),
        ("Name:\tkthreadd\n", False),
        (f"Name:\tpython\n{GROUPS}SigCgt:\t0000000180004002\n", True),
    ],
    ids=["a handler", "ignored is not caught", "default", "not told", "behind as many groups as there can be"],
)
def test_whether_a_signal_is_caught(tmp_path: Path, status: str, caught: bool) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "status").write_text(status)
    fields = processes.read_status(1, ("SigCgt",), tmp_path)
    assert fields is not None
    process = Process(1, 1, processes.caught_signals(fields), ())
    assert [number for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL) if process.catches(number)] == (
        [signal.SIGTERM] if caught else []
    )


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SIGTERM", 15),
        ("SIGKILL", 9),
        ("SIGRTMIN", 34),
        ("SIGRTMIN+3", 37),
        ("SIGRTMAX-14", 50),
        ("SIGRTMAX", 64),
        ("SIGRTMIN-1", None),
        ("SIGRTMAX+1", None),
        ("SIG_BLOCK", None),
        ("15", None),
        ("", None),
    ],
)
def test_a_signal_has_the_number_that_the_kernel_knows_it_by(name: str, number: int | None) -> None:
    assert signals.number_of(name) == number


def test_of_nested_pods_the_outermost_that_is_known_counts() -> None:
    """A cgroup further in can be made by whoever may write cgroups inside a container."""
    text = f"0::/kubepods/pod{UID}/{CID}/kubepods/pod99999999-1111-2222-3333-444455556666/{OTHER}"
    outer, inner = procfs.owners_of(text)
    assert outer == BOTH
    assert procfs.owner_among((outer, inner), {UID, inner.pod_uid}) == outer
    assert procfs.owner_among((outer, inner), {inner.pod_uid}) == inner
    assert procfs.owner_among((outer, inner), set()) is None


def test_the_start_time_is_found_behind_any_command() -> None:
    fields = " ".join(str(number) for number in range(4, 53))
    assert procfs.start_time(f"7 (a) b) (c) S {fields}\n") == 22


def test_this_machine_s_own_proc_is_understood() -> None:
    me = processes.read(os.getpid())
    assert me is not None
    assert me.started == procfs.read_start_time(os.getpid())
    assert all(owner.pod_uid for owner in me.owners)


@pytest.mark.parametrize("handler", [True, False])
def test_a_real_process_s_handler_is_seen(handler: bool) -> None:
    setup = "signal.signal(signal.SIGTERM, print); " if handler else ""
    program = f"import signal, sys; {setup}print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        process = processes.read(child.pid)
        child.stdin.close()
    assert process is not None
    assert process.catches(signal.SIGTERM) is handler


@pytest.mark.parametrize(
    "name", [r"\xff\xfe) (S 1", r"\x0cSigCgt:zz", r"\rSigCgt:zz", r"\x85SigCgt:4000", r"\nSigCgt:4000"]
)
def test_a_process_may_have_any_name(name: str) -> None:
    """A process on a GPU chooses its name: reading it never fails, and no field is taken from the name."""
    rename = f"import ctypes, sys; ctypes.CDLL(None).prctl(15, b'{name}')"
    program = f"{rename}; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        process = processes.read(child.pid)
        command = command_name(child.pid)
        above = ancestors(child.pid, Owner("none", ""), signal.SIGTERM)
        child.stdin.close()
    assert process is not None
    assert (process.pid, process.catches(signal.SIGTERM), above) == (child.pid, False, [])
    assert command


def test_a_process_that_has_ended_is_not_read(tmp_path: Path) -> None:
    assert processes.read(1, tmp_path) is None
    assert procfs.read_start_time(1, tmp_path) is None


def test_a_process_of_which_nothing_is_known_hides_no_other(tmp_path: Path) -> None:
    for pid in (1, 2):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) S " + " ".join(["0"] * 18 + ["7", "0"]))
        (tmp_path / str(pid) / "status").write_text("SigCgt:\t0\n")
        (tmp_path / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{UID}/{CID}\n" + "x" * 2_000_000 * (pid - 1))
    with pytest.raises(OSError, match="more than"):
        processes.read(2, tmp_path)
    assert [process.pid for process in processes.read_all([2, 1], tmp_path)] == [1]
