"""A place for measurements of the attach broker: a daemon, a broker in front of it, and clients of either.

The broker runs as its own user, without a capability; the supervisor's turns come from this process. Which container
a process is of stands on its command line here, since there are no containers. `stand` ends all that it started.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from gpushare.mps.control import ControlError
from gpushare.mps.control_socket import ControlSocket
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor.turns import Terms, TurnServer
from gpushare.mps.wire import ClientGrant, DaemonLimits, GpuGrants, GrantedContainer, GrantedPod
from gpushare.process import users
from gpushare.process.procfs import Owner
from measurements.gpu.private_mps import PrivateMps

CEILING_MIB = 16384
SERVE = """
import asyncio, sys, time
from pathlib import Path
from gpushare.mps.broker.broker import BrokerSettings, serve
from measurements.gpu.mps.attach.stand import owners
asyncio.run(serve(Path(sys.argv[1]), BrokerSettings("bench", lambda: time.clock_gettime(time.CLOCK_BOOTTIME), owners)))
"""
CLIENT = """
import ctypes, json, sys, time
began = time.monotonic()
cuda = ctypes.CDLL("libcuda.so.1")
device, context, value = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
error = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
error = error or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
seconds = time.monotonic() - began
if not error:
    cuda.cuDeviceGetAttribute(ctypes.byref(value), 16, device)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(json.dumps({"error": error, "seconds": seconds, "sms": value.value, "free_mib": free.value >> 20}), flush=True)
source = open(0, closefd=False)
for line in source:
    print(json.dumps({"error": cuda.cuCtxSynchronize()}), flush=True)
"""
"""A context and nothing else, so that its start is CUDA's own. Answers each line with what a later call says."""


def owners(pid: int) -> list[Owner] | None:
    """Tells the broker whose process each is, by its command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return [Owner(word.removeprefix("--pod="), "") for word in words if word.startswith("--pod=")]


class Program:
    """A program of this script, as a process of the container `pod`."""

    def __init__(self, code: str, pod: str, environment: dict[str, str], *words: str, user: int = 1000) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, f"--pod={pod}", *words], env=environment, user=user, group=user,
            extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self._process.pid

    def text(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def line(self) -> dict[str, Any]:
        text = self.text()
        answer: dict[str, Any] = json.loads(text) if text else {"error": "ended"}
        return answer

    def ask(self, question: str = "") -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            print(question, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            return {"error": "ended"}
        return self.line()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)


class Stand:
    """A daemon, a broker in front of it, and the environments of clients of either."""

    def __init__(
        self,
        mps: PrivateMps,
        gpu: GpuDir,
        serve: str,
        words: Sequence[str],
        turn_control: Callable[[Path, float], ControlSocket],
    ) -> None:
        self.mps, self.gpu = mps, gpu
        self._serve = [sys.executable, "-c", serve, str(gpu.path.parent), *words]
        [self.server] = mps.control.server_list()
        self.direct = mps.granted(100) | {"HOME": "/tmp", "CUPY_CACHE_DIR": "/tmp/cupy"}
        del self.direct["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
        self.brokered = self.direct | {"CUDA_MPS_PIPE_DIRECTORY": str(gpu.attach)}
        self._broker: subprocess.Popen[bytes] | None = None
        ceiling = DaemonLimits(threads=100, memory_mib=CEILING_MIB)
        control = turn_control(mps.pipe / "control", 2.0)
        self._turns = TurnServer(gpu, control, lambda: Terms(self.server, ceiling), threading.Lock(), users.BROKER)
        self._turns.start()

    def grant(self, **grants: tuple[int, int, int]) -> None:
        """(threads, MiB, processes) of each pod, whose name is its uid here."""
        pods = [
            GrantedPod(uid=pod, namespace="bench", name=pod, containers=[GrantedContainer(name="app", grant=grant)])
            for pod, (threads, memory, processes) in grants.items()
            for grant in (ClientGrant(threads=threads, memory_mib=memory, processes=processes),)
        ]
        write_model(self.gpu.grants, GpuGrants(uuid=self.gpu.uuid, share="bench", pods=pods), mode=0o644)

    def client(self, pod: str = "all", environment: dict[str, str] | None = None, user: int = 1000) -> Program:
        return Program(CLIENT, pod, environment or self.brokered, user=user)

    def start_broker(self) -> None:
        before = self._inode()
        self._broker = subprocess.Popen(self._serve, user=users.BROKER, group=users.BROKER, extra_groups=[])
        wait_until("the broker listens", lambda: self._inode() not in (0, before))

    def kill_broker(self) -> None:
        assert self._broker is not None
        self._broker.kill()
        self._broker.wait(10)

    def end(self) -> None:
        self.kill_broker()
        self._turns.end()

    def broker_state(self) -> dict[str, Any]:
        time.sleep(1)
        state: dict[str, Any] = json.loads(self.gpu.broker_state.read_text())
        return state

    def refusals(self) -> dict[str, int]:
        return {
            f"{refusal['podUid']}: {refusal['reason']}": refusal["count"] for refusal in self.broker_state()["refusals"]
        }

    def listed(self) -> set[int]:
        """PIDs that the MPS server takes for its clients."""
        return set(self.mps.control.clients(self.server))

    def answers(self) -> bool:
        try:
            return self.mps.control.server_status(self.server) == "ACTIVE"
        except ControlError:
            return False

    def _inode(self) -> int:
        try:
            return self.gpu.attach_control.stat().st_ino
        except FileNotFoundError:
            return 0


@contextmanager
def stand(
    serve: str = SERVE,
    words: Sequence[str] = (),
    turn_control: Callable[[Path, float], ControlSocket] = ControlSocket,
) -> Iterator[Stand]:
    """`serve`: the broker's program, with `words` as its further arguments. `turn_control`: makes what turns command
    the server by.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        root = Path(name)
        root.chmod(0o755)
        with PrivateMps(root, threads=100, memory_mib=CEILING_MIB) as mps:
            gpu = GpuDir(root / "GPU-0")
            for directory in (gpu.client, gpu.attach, gpu.broker):
                directory.mkdir(parents=True)
            for directory in (gpu.attach, gpu.broker):
                os.chown(directory, users.BROKER, users.BROKER)
            gpu.client_share.write_text("bench")
            gpu.client_control.hardlink_to(mps.pipe / "control")
            wait_until("the server is there", lambda: bool(mps.control.server_list()))
            made = Stand(mps, gpu, serve, words, turn_control)
            made.grant(all=(100, CEILING_MIB, 60))
            made.start_broker()
            try:
                yield made
            finally:
                made.end()


def wait_until(what: str, condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 5), "min": round(min(values), 5), "max": round(max(values), 5)}
