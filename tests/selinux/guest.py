"""Init of a machine that loads an SELinux policy, enforces it, and plays agent, MPS pod and client by their labels.

Prints one line for each case: was `attach/` labelled, as what the MPS pod ran, and how each step ended ("ok" or the
errno). Steps are those of a client that attaches, with the same kinds of files: a SEQPACKET socket in the labelled
directory, over which a socket and the writing end of a pipe are passed. No CUDA, no container runtime.
"""

import array
import ctypes
import errno
import os
import pathlib
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

NOBODY, TENANT = 65534, 1000
CLIENT = "system_u:system_r:container_t:s0:c1,c2"
CONFINED = ("system_u:system_r:container_t:s0:c5,c6", "system_u:system_r:container_t:s0")
POLICIES = {
    # name: (label of /run, unconfined containers, who may switch enforcing)
    "container-selinux": ("var_run_t", "system_u:system_r:spc_t:s0", "system_u:system_r:spc_t:s0"),
    "bottlerocket": ("any_t", "system_u:system_r:control_t:s0", "system_u:system_r:super_t:s0"),
}
SECONDS = 20.0
ATTRIBUTE = "security.selinux"
REBOOT_POWER_OFF = 0x4321FEDC


def outcome(step: Callable[[], Any]) -> str:
    try:
        step()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "ok"


def write(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def label_of(path: str) -> str:
    return os.getxattr(path, ATTRIBUTE).decode().rstrip("\0").split(":", 2)[2]


class Actor:
    """A process with a label that does `work` with each word it is told, and answers with its result."""

    def __init__(self, label: str, user: int, work: Callable[[str], str]) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(SECONDS)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                write("/proc/self/attr/current", label.encode())
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
                theirs.send(b"up")
                while word := theirs.recv(64).decode():
                    theirs.send(work(word).encode())
            finally:
                os._exit(0)
        theirs.close()
        self._ours.recv(2)

    def tell(self, word: str) -> None:
        self._ours.send(word.encode())

    def answer(self) -> str:
        try:
            return self._ours.recv(4096).decode() or "ended"
        except TimeoutError:
            return "no answer"

    def ask(self, word: str) -> str:
        self.tell(word)
        return self.answer()

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class MpsPod:
    """Broker and daemon in one: what the client reaches, and what is passed to it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener: socket.socket
        """Made by the pod's own process, since a socket has its maker's label."""

    def work(self, word: str) -> str:
        if word == "listen":
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            bound = outcome(lambda: self._listener.bind(self._path))
            if bound == "ok":
                pathlib.Path(self._path).chmod(0o666)
                self._listener.listen()
            return bound
        if word.startswith("/proc/"):
            return outcome(pathlib.Path(word).read_bytes)
        self._listener.settimeout(SECONDS / 4)
        return outcome(self._serve)

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        connection.send(b"greeting")
        connection.recv(64)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        passed = array.array("i", [theirs.fileno(), writing])
        connection.sendmsg([b"passed"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        ours.send(b"word")
        ours.settimeout(SECONDS / 4)
        ours.recv(64)
        os.set_blocking(reading, False)
        time.sleep(1.0)
        os.read(reading, 64)


def client(path: str) -> str:
    """Each step's outcome, in order."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(SECONDS / 4)
    outcomes = [f"connect {outcome(lambda: connection.connect(path))}"]
    if outcomes == ["connect ok"]:
        outcomes.append(f"greeting {outcome(lambda: connection.recv(64))}")
        connection.send(b"request")
        _, ancillary, _, _ = connection.recvmsg(64, 64)
        passed = array.array("i")
        for _, _, content in ancillary:
            passed.frombytes(content)
        for name, descriptor in zip(("socket", "pipe"), passed, strict=False):
            outcomes.append(f"{name}: write {outcome(lambda fd=descriptor: os.write(fd, b'word'))}")
            outcomes.append(f"fstat {outcome(lambda fd=descriptor: os.fstat(fd))}")
        outcomes.append(f"socket: read {outcome(lambda: os.read(passed[0], 64))}")
    return ", ".join(outcomes)


def case(number: int, labelled: bool, unconfined: str, pod_label: str) -> None:
    sys.path.insert(0, "/code")
    from container_labels import open_to_containers  # type: ignore[import-not-found]  # the agent's, as it is

    attach = pathlib.Path(f"/run/gpushare-{number}/attach")
    path = str(attach / "control")
    write("/sys/fs/selinux/enforce", b"0")

    def agent(_: str) -> str:
        attach.mkdir(parents=True)
        attach.chmod(0o775)
        os.chown(attach, 0, NOBODY)
        if labelled:
            open_to_containers(attach)
        return label_of(str(attach))

    maker = Actor(unconfined, 0, agent)
    pod = Actor(pod_label, NOBODY, MpsPod(path).work)
    tenant = Actor(CLIENT, TENANT, lambda _: client(path))
    write("/sys/fs/selinux/enforce", b"1")
    made, listens = maker.ask("make"), pod.ask("listen")
    reads, served, attached = pod.ask(f"/proc/{tenant.pid}/cgroup"), "-", "-"
    if listens == "ok":
        pod.tell("serve")
        attached, served = tenant.ask("attach"), pod.answer()
    write("/sys/fs/selinux/enforce", b"0")
    for actor in (maker, pod, tenant):
        actor.end()
    shown = f"CASE attach/ {made} | pod {pod_label.split(':', 2)[2]} | listens {listens} | reads {reads}"
    print(f"{shown} | served {served} | {attached}", flush=True)


def relabel(label: str) -> str:
    directory = pathlib.Path("/run/gpushare-relabel")
    directory.mkdir()
    wanted = b"system_u:object_r:container_file_t:s0"
    actor = Actor(label, 0, lambda _: outcome(lambda: os.setxattr(directory, ATTRIBUTE, wanted)))
    write("/sys/fs/selinux/enforce", b"1")
    answer = actor.ask("label")
    write("/sys/fs/selinux/enforce", b"0")
    actor.end()
    return answer


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, target in (("proc", "/proc"), ("sysfs", "/sys"), ("selinuxfs", "/sys/fs/selinux"), ("tmpfs", "/run")):
        if libc.mount(kind.encode(), target.encode(), kind.encode(), 0, None):
            raise OSError(ctypes.get_errno(), f"mount {target}")
    name = os.environ["POLICY"]
    run_type, unconfined, switcher = POLICIES[name]
    write("/sys/fs/selinux/load", pathlib.Path("/policy").read_bytes())
    os.setxattr("/run", ATTRIBUTE, f"system_u:object_r:{run_type}:s0".encode())
    pathlib.Path("/run").chmod(0o755)
    write("/proc/self/attr/current", switcher.encode())
    print(f"CASES policy {name}, kernel {os.uname().release}", flush=True)
    cases = [(labelled, pod) for labelled in (True, False) for pod in (unconfined, *CONFINED)]
    for number, (labelled, pod) in enumerate(cases):
        case(number, labelled, unconfined, pod)
    print(f"CASE a confined agent that labels: {relabel(CONFINED[0])}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Exception:  # noqa: BLE001 - nobody else would print it
        traceback.print_exc()
    sys.stdout.flush()
    time.sleep(0.5)
    ctypes.CDLL(None).reboot(REBOOT_POWER_OFF)
