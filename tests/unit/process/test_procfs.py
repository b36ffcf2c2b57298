"""Every way in which kubelets and runtimes name a container's cgroup, by combination."""

import os
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.process.procfs import (
    Owner,
    owners_of,
    read_environment,
    read_start_of_running,
    read_start_time,
    start_time,
    within_cluster,
)

UID = "0a1b2c3d-1111-2222-3333-444455556666"
OTHER = "99999999-1111-2222-3333-444455556666"
CID = "ab" * 32

QOS = ("guaranteed", "burstable", "besteffort")
SCOPES = {"containerd": "cri-containerd-{}.scope", "CRI-O": "crio-{}.scope", "Docker": "docker-{}.scope"}
FOLDERS = {"containerd": "{}", "CRI-O": "crio-{}", "Docker": "{}"}
INSIDE = {"": "the container's own cgroup", "/init": "one inside", "/system.slice/app.service": "systemd inside"}
VERSIONS = {
    "v2": "0::{}",
    "v1": "12:memory:{0}\n4:cpu,cpuacct:{0}\n1:name=systemd:{0}\n0::/",
    "hybrid": "0::/\n3:cpu:{}",
}


def systemd(qos: str, runtime: str, uid: str = UID) -> str:
    name = "" if qos == "guaranteed" else f"-{qos}"
    parent = f"/kubepods{name}.slice" if name else ""
    pod = f"kubepods{name}-pod{uid.replace('-', '_')}.slice"
    return f"/kubepods.slice{parent}/{pod}/" + SCOPES[runtime].format(CID)


def cgroupfs(qos: str, runtime: str, uid: str = UID) -> str:
    parent = "" if qos == "guaranteed" else f"/{qos}"
    return f"/kubepods{parent}/pod{uid}/" + FOLDERS[runtime].format(CID)


@pytest.mark.parametrize("inside", INSIDE, ids=INSIDE.get)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("qos", "runtime", "driver"), list(product(QOS, SCOPES, (systemd, cgroupfs))))
def test_a_container_is_found_by_its_cgroup(qos: str, runtime: str, driver: object, version: str, inside: str) -> None:
    path = systemd(qos, runtime) if driver is systemd else cgroupfs(qos, runtime)
    assert owners_of(VERSIONS[version].format(path + inside)) == (Owner(UID, CID),)


@pytest.mark.parametrize(("qos", "runtime"), list(product(QOS, SCOPES)))
def test_a_container_is_found_from_inside_a_cgroup_namespace(qos: str, runtime: str) -> None:
    """The agent's own, in which its neighbours are reached by `..`."""
    seen = "/".join(["", "..", "..", *systemd(qos, runtime).split("/")[-2:]])
    assert owners_of(f"0::{seen}") == (Owner(UID, CID),)


@pytest.mark.parametrize("driver", [systemd, cgroupfs])
def test_of_pods_in_a_pod_each_is_found_with_its_own_container(driver: object) -> None:
    make = systemd if driver is systemd else cgroupfs
    outer, inner = make("burstable", "containerd", OTHER), make("besteffort", "CRI-O")
    assert owners_of(f"0::{outer}{inner}") == (Owner(OTHER, CID), Owner(UID, CID))


def test_a_pod_takes_no_container_from_a_pod_inside_its_cgroup() -> None:
    assert owners_of(f"0::/kubepods/pod{OTHER}/kubepods/pod{UID}/{CID}") == (Owner(OTHER, ""), Owner(UID, CID))


@pytest.mark.parametrize("path", ["/", "/system.slice/ssh.service", "/kubepods.slice", "/user.slice/pod-1.scope"])
def test_a_process_of_the_host_has_no_owner(path: str) -> None:
    assert owners_of(f"0::{path}") == ()


def test_the_pods_around_a_cluster_are_no_pods_of_it() -> None:
    around, ours, peer, named = (Owner(f"{digit * 8}-1111-2222-3333-444455556666", CID) for digit in "abcd")
    assert within_cluster((peer, named), (ours,)) == (peer, named)
    assert within_cluster((peer,), ()) == (peer,), "from inside a cgroup namespace"
    assert within_cluster((around, peer, named), (around, ours)) == (peer, named)
    assert within_cluster((peer, named), (around, ours)) == (), "not of this cluster"
    assert within_cluster((), (around, ours)) == ()


def until_shown_as_zombie(pid: int) -> None:
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_that_nobody_has_waited_for_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        until_shown_as_zombie(process.pid)
        assert read_start_time(process.pid) is not None
        assert read_start_of_running(process.pid) is None
    finally:
        process.wait()
    assert read_start_of_running(process.pid) is None
    assert read_start_of_running(os.getpid()) == read_start_time(os.getpid())


def test_a_process_whose_first_thread_alone_has_ended_runs() -> None:
    text = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "ctypes.CDLL(None).syscall(60 if ctypes.sizeof(ctypes.c_void_p) == 8 and __import__('platform').machine()"
        " == 'x86_64' else 93, 0)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", text])
    try:
        until_shown_as_zombie(process.pid)
        assert read_start_of_running(process.pid) == read_start_time(process.pid)
    finally:
        process.kill()
        process.wait()


CGROUP = st.text(st.sampled_from("0123456789abcdef-_/:.\n") | st.characters(exclude_categories=["Cs"]), max_size=200)
PARTS = st.sampled_from(["/", ":", f"pod{UID}", f"kubepods-pod{UID.replace('-', '_')}.slice", CID, "0::", "\n", ".."])


@given(st.lists(PARTS | CGROUP, max_size=12).map("".join))
def test_any_text_of_a_cgroup_names_pods_and_containers_or_nothing(text: str) -> None:
    for owner in owners_of(text):
        assert len(owner.pod_uid) in (32, 36)
        assert set(owner.pod_uid) <= set("0123456789abcdef-")
        assert owner.container_id == "" or len(owner.container_id) == 64


@given(st.binary(max_size=16).map(lambda name: name.replace(b"\n", b"\\n").decode(errors="replace")))
def test_a_start_time_is_read_beside_any_name_of_a_process(name: str) -> None:
    fields = " ".join(str(number) for number in range(4, 53))
    assert start_time(f"7 ({name}) S {fields}\n") == 22


BYTES = st.lists(st.integers(1, 255), max_size=20).map(bytes)
VARIABLES = st.lists(st.tuples(st.sampled_from([b"A", b"AB", b"", b"B"]), BYTES), max_size=8)


@given(VARIABLES, BYTES)
def test_of_any_environment_the_first_of_a_name_is_read(
    tmp_path_factory: pytest.TempPathFactory, variables: list[tuple[bytes, bytes]], garbage: bytes
) -> None:
    proc = tmp_path_factory.mktemp("proc")
    (proc / "7").mkdir()
    (proc / "7" / "environ").write_bytes(b"\0".join([*(b"=".join(pair) for pair in variables), b"#" + garbage]))
    first = next((value.decode(errors="replace") for name, value in variables if name == b"A"), None)
    assert read_environment(7, ["A"], proc) == ({} if first is None else {"A": first})
