"""What the kernel counts for each user of the node, over all containers: pods that use it up as the users of our parts
harm nobody. Root of a container may become any user, so a user of one's own is no protection.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpushare.process import users
from tests.cluster.harness import Harness, Share, Tenant, holds_for, wait_until
from tests.cluster.node import can_give, processes_of_part, signal_in_node
from tests.cluster.rights.test_attach_gaps import broker_process
from tests.cluster.tools.test_ui import in_cluster

SYS_RESOURCE = 1 << 24
COUNTED = ("eventpoll", "inotify", "fanotify", "io_uring", "userfaultfd", "bpf", "/dev/mqueue", "/dev/shm")
"""What descriptors of things lead to that the kernel counts for each user, or that lie where others may fill them."""
PARTS = ("operator", "webhook", "agent", "mps-supervisor", "mps-broker")
BEGIN = """
import errno, json, os, resource, select, socket, sys, time
user = int(sys.argv[1])
if os.getuid() != user:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
def hold(taken, error):
    print(json.dumps({"event": "used-up", "user": os.getuid(), "taken": taken, "error": error}), flush=True)
    time.sleep(90)
"""
"""An attack ends by itself, whatever becomes of the test."""
IN_FLIGHT = (
    BEGIN
    + """
taken, pairs = 0, []
while True:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    pairs.append((ours, theirs))
    try:
        while True:
            socket.send_fds(ours, [b"x"], [0] * 250)
            taken += 250
    except BlockingIOError:  # this pair is full, the user may have more under way
        continue
    except OSError as error:
        hold(taken, errno.errorcode[error.errno])
        break
"""
)
WATCHES = (
    BEGIN
    + """
watched = [os.eventfd(0) for _ in range(8000)]
taken, polls = 0, []
while True:
    polls.append(select.epoll())
    try:
        for descriptor in watched:
            polls[-1].register(descriptor, select.EPOLLIN)
            taken += 1
    except OSError as error:
        hold(taken, errno.errorcode[error.errno])
        break
"""
)
KEYS = (
    BEGIN
    + """
import ctypes, platform
add_key = {"x86_64": 248, "aarch64": 217}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
taken, error = 0, 0
while not error:
    if libc.syscall(add_key, b"user", b"gpushare-%d" % taken, b"x" * 64, 64, -2) < 0:
        error = ctypes.get_errno()
    taken += not error
hold(taken, errno.errorcode[error])
"""
)
"""Kernel keys in a keyring of the process."""
LOCKS = """
import fcntl, json, os, pathlib, signal, stat, time
points = [pathlib.Path(line.split()[4]) for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
ours = [point for point in points if pathlib.Path("/run/gpushare") in point.parents]
found = [path for point in ours for path in (point, *point.glob("*")) if stat.S_ISREG(path.stat().st_mode)]
files = {str(path): os.open(path, os.O_RDONLY) for path in found}
for descriptor in files.values():
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
def leases(kind):
    leased = []
    for path, descriptor in files.items():
        os.seteuid(os.fstat(descriptor).st_uid)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
            leased.append(path)
        except OSError:
            pass
        os.seteuid(0)
    return leased
print(json.dumps({"event": "locked", "locked": list(files), "leased": leases(fcntl.F_WRLCK)}), flush=True)
while not any(path.endswith("/board") for path in leases(fcntl.F_RDLCK)):
    pass
print(json.dumps({"event": "leased"}), flush=True)
time.sleep(90)
"""
"""Root of a container locks the files that it has from us, and asks for leases on them as the user of each: to write at
once, and then to read until it gets one on the board.
"""


def attacker(tenant: Tenant, name: str, program: str, user: int, *, becomes: bool) -> dict[str, Any]:
    """A pod without a slot. `becomes`: it starts as root with the runtime's capabilities, and becomes `user`."""
    pod = tenant.pod(name, "", command=["python3", "-c", program, str(user)], user=0 if becomes else user)
    (app,) = pod["spec"]["containers"]
    app["resources"] = {}
    return as_root(pod) if becomes else pod


def as_root(pod: dict[str, Any]) -> dict[str, Any]:
    """With what `baseline` lets it have: the runtime's capabilities, and no seccomp profile."""
    pod["spec"]["securityContext"] = {"runAsUser": 0}
    del pod["spec"]["containers"][0]["securityContext"]
    return pod


@contextmanager
def used_up(harness: Harness, program: str, user: int, error: str, *, becomes: bool) -> Iterator[None]:
    """Nothing is left for `user` meanwhile, on the whole node."""
    with harness.namespace(enforce="baseline" if becomes else "restricted") as attackers:
        attackers.start(attacker(attackers, "attacker", program, user, becomes=becomes))
        held = attackers.wait_event("attacker", "used-up")
        assert (held["user"], held["error"]) == (user, error), "the attack was not carried out"
        yield
        assert [pod["status"]["phase"] for pod in attackers.pods()] == ["Running"], "it ended before the test"
        attackers.delete_pods()


@pytest.fixture(scope="module")
def share(harness: Harness) -> Iterator[Share]:
    with harness.share("counted", per_node=1) as share:
        yield share


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.usefixtures("share")
def test_a_part_holds_nothing_that_is_counted_for_its_user(harness: Harness, part: str) -> None:
    pids = wait_until(f"{part} runs", lambda: processes_of_part(harness, part))
    processes = [harness.in_node(f"/proc/{pid}") for pid in pids]
    opened = [str(path.readlink()) for process in processes for path in (process / "fd").iterdir() if path.is_symlink()]
    assert any(target.startswith("socket:") for target in opened), opened
    assert [target for target in opened if any(word in target for word in COUNTED)] == []
    assert all("VmLck:\t       0 kB" in (process / "status").read_text() for process in processes)


@pytest.mark.skipif(not can_give(SYS_RESOURCE), reason="this machine has no CAP_SYS_RESOURCE to give")
@pytest.mark.parametrize("becomes", [False, True], ids=["the broker's user", "root that becomes it"])
def test_descriptors_under_way_of_others_keep_no_client_from_attaching(
    harness: Harness, share: Share, becomes: bool
) -> None:
    with harness.namespace() as tenant:
        names = tenant.neighbours(share.name, 1)
        with used_up(harness, IN_FLIGHT, users.BROKER, "ETOOMANYREFS", becomes=becomes):
            tenant.start(tenant.pod("late", share.name, "limits"))
            assert tenant.wait_event("late", "limits")["problems"] == []
            tenant.go_on(names)


def test_keys_locks_and_leases_of_others_keep_no_client_from_attaching(harness: Harness, share: Share) -> None:
    """Not even while a broker begins."""
    keys = [line.split(":")[0].strip() for line in harness.in_node("/proc/key-users").read_text().splitlines()]
    assert not {str(user) for user in (users.OPERATOR, users.WEBHOOK, users.PAGE, users.BROKER)} & {*keys}
    with harness.namespace() as tenant, harness.namespace(enforce="baseline") as root:
        names = tenant.neighbours(share.name, 1)
        root.start(as_root(root.pod("locks", share.name, command=["python3", "-c", LOCKS])))
        held = root.wait_event("locks", "locked")
        assert sorted(path.rpartition("/")[2] for path in held["locked"]) == ["board", "pre-stop"]
        assert held["leased"] == [], "whoever opens it then waits for 45 s"
        with (
            used_up(harness, KEYS, users.BROKER, "EPERM", becomes=False),
            used_up(harness, KEYS, users.BROKER, "EDQUOT", becomes=True),
        ):
            signal_in_node(harness, broker_process(harness, share), "KILL")
            root.wait_event("locks", "leased")
            tenant.start(tenant.pod("late", share.name, "limits"))
            assert tenant.wait_event("late", "limits")["problems"] == []
            tenant.go_on(names)


@pytest.mark.long  # a minute of CPU time and 1 GiB for each user, as the kernel lets one take
@pytest.mark.parametrize("user", [users.OPERATOR, users.WEBHOOK, users.PAGE])
def test_watches_of_others_keep_no_part_from_its_connections(harness: Harness, share: Share, user: int) -> None:
    def all_ready() -> bool:
        return all(harness.component_ready(part) for part in ("operator", "webhook", "ui"))

    with in_cluster(harness) as page, harness.namespace() as tenant:
        wait_until("all parts are ready", all_ready, 60)
        with used_up(harness, WATCHES, user, "ENOSPC", becomes=True):
            # Each probe of the kubelet is a connection of its own, and the third that fails makes a pod unready.
            holds_for("a part is unready", all_ready, 20)
            tenant.neighbours(share.name, 1)
            assert page.get("", host="gpus.example.com")[0] == 200
