#!/usr/bin/env python3
"""The attach broker on a real GPU: what it costs, what it refuses, and what its end means for clients.

    python3 tests/gpu/broker.py OUT.json        as root on an idle GPU, nvidia-cuda-mps-control on PATH

The broker runs as UID 65534 beside a daemon that the script starts. Compared in turns: clients that connect to the
daemon itself, as before there was a broker, and clients that connect to the broker. Ends everything that it started.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import work_tree  # noqa: F401 - what is imported next comes from this work tree
from environment import environment_block
from private_mps import PrivateMps

from gpushare.mps.control import PROGRAM
from gpushare.mps.layout import GpuDir

NOBODY = 65534
ATTACHES, LAUNCHES = 15, 9
"""Repeats of each way, in turns."""
CROWD = 48
"""What one GPU takes with this driver."""
SERVE = """
import asyncio, sys, time
from pathlib import Path
from gpushare.broker.broker import serve
asyncio.run(serve(Path(sys.argv[1]), "bench", lambda: time.clock_gettime(time.CLOCK_BOOTTIME)))
"""
CLIENT = """
import ctypes, json, sys, time
began = time.monotonic()
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
error = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
error = error or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
print(json.dumps({"error": error, "seconds": time.monotonic() - began}), flush=True)
for line in sys.stdin:
    print(json.dumps({"error": cuda.cuCtxSynchronize()}), flush=True)
"""
"""A context and nothing else, so that its start is CUDA's own. Answers each line with what a later call says."""

LAUNCH = """
import time
import cupy
source = "extern \\"C\\" __global__ void add(float* x) { x[blockIdx.x * 256 + threadIdx.x] += 1.0f; }"
kernel = cupy.RawKernel(source, "add")
data = cupy.zeros(8 * 256, dtype=cupy.float32)
stream = cupy.cuda.get_current_stream()
def turn(seconds):
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        kernel((8,), (256,), (data,))
        stream.synchronize()
        done += 1
    assert float(data[0]) > 0
    return done / seconds
turn(0.5)
print(turn(2.0))
"""
"""Eight blocks, one launch and one wait after the other: the worst case for anything that stands in the way."""


class Client:
    def __init__(self, environment: dict[str, str], user: int = 1000) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLIENT], env=environment, user=user, group=user, extra_groups=[],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self._process.pid

    def line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(text) if text else {"error": "ended"}
        return answer

    def check(self) -> int:
        """The CUDA error of a call made now; 0: it goes on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self.line()["error"])

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)


class Stand:
    """A daemon, a broker in front of it, and the environments of clients of either."""

    def __init__(self, mps: PrivateMps, gpu: GpuDir) -> None:
        self.mps, self.gpu = mps, gpu
        self.direct = mps.granted(100)
        self.brokered = self.direct | {"CUDA_MPS_PIPE_DIRECTORY": str(gpu.attach)}
        self._broker: subprocess.Popen[bytes] | None = None

    def start_broker(self) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._broker = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(self.gpu.path.parent)], env=environment, user=NOBODY, group=NOBODY,
            extra_groups=[],
        )  # fmt: skip
        before = self._inode()
        wait_until("the broker listens", lambda: self._inode() not in (0, before))

    def kill_broker(self) -> None:
        assert self._broker is not None
        self._broker.kill()
        self._broker.wait(10)

    def broker_state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.gpu.broker_state.read_text())
        return state

    def listed(self) -> set[int]:
        """PIDs that the MPS server takes for its clients."""
        return {pid for server in self.mps.control.server_list() for pid in self.mps.control.clients(server)}

    def _inode(self) -> int:
        try:
            return self.gpu.attach_control.stat().st_ino
        except FileNotFoundError:
            return 0


@contextmanager
def stand() -> Iterator[Stand]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        root = Path(name)
        root.chmod(0o755)
        with PrivateMps(root, threads=100, memory_mib=16384) as mps:
            gpu = GpuDir(root / "GPU-0")
            for directory in (gpu.client, gpu.attach, gpu.broker):
                directory.mkdir(parents=True)
            for directory in (gpu.attach, gpu.broker):
                os.chown(directory, NOBODY, NOBODY)
            gpu.client_share.write_text("bench")
            gpu.client_control.hardlink_to(mps.pipe / "control")
            made = Stand(mps, gpu)
            made.start_broker()
            try:
                yield made
            finally:
                made.kill_broker()


def wait_until(what: str, condition: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 5), "min": round(min(values), 5), "max": round(max(values), 5)}


def attach_times(it: Stand) -> dict[str, Any]:
    """Seconds from a process' first CUDA call to its context, in turns."""
    found: dict[str, list[float]] = {"direct": [], "broker": []}
    for _ in range(ATTACHES):
        for way, environment in (("direct", it.direct), ("broker", it.brokered)):
            client = Client(environment)
            first = client.line()
            if first["error"] or client.pid not in it.listed():
                raise RuntimeError(f"{way}: {first}, listed: {it.listed()}")
            found[way].append(first["seconds"])
            client.end()
    ratio = median(b / d for b, d in zip(found["broker"], found["direct"], strict=True))
    return {way: spread(values) for way, values in found.items()} | {"ratio": round(ratio, 4), "repeats": ATTACHES}


def launches(it: Stand) -> dict[str, Any]:
    """Kernels per second of one client, launched and waited for one by one, in turns."""
    found: dict[str, list[float]] = {"direct": [], "broker": []}
    for _ in range(LAUNCHES):
        for way, environment in (("direct", it.direct), ("broker", it.brokered)):
            done = subprocess.run(
                [sys.executable, "-c", LAUNCH], env=environment, capture_output=True, text=True, timeout=90, check=True
            )
            found[way].append(float(done.stdout))
    ratio = median(b / d for b, d in zip(found["broker"], found["direct"], strict=True))
    return {way: spread(values) for way, values in found.items()} | {"ratio": round(ratio, 4), "repeats": LAUNCHES}


def crowd(it: Stand, environment: dict[str, str]) -> dict[str, Any]:
    """So many clients at once: seconds until the last has its context."""
    began = time.monotonic()
    clients = [Client(environment) for _ in range(CROWD)]
    errors = [client.line()["error"] for client in clients]
    seconds = time.monotonic() - began
    listed = len(it.listed())
    for client in clients:
        client.end()
    return {"clients": CROWD, "seconds": round(seconds, 2), "errors": sorted(set(errors)), "listed": listed}


def commands(environment: dict[str, str], *script: str) -> str:
    """What the control program prints as the node's root, and how it ends."""
    done = subprocess.run(
        [PROGRAM], input="".join(f"{line}\n" for line in script), env=environment, capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip
    return f"exit {done.returncode}: {(done.stdout + done.stderr).strip()[:200]}"


def attack(it: Stand) -> dict[str, Any]:
    """Root without a container's limits, with nothing but the clients' directory, tries to end and to widen others."""
    neighbour = Client(it.brokered)
    assert neighbour.line()["error"] == 0
    [server] = it.mps.control.server_list()
    tried = {
        script: commands(it.brokered, script)
        for script in (
            "get_server_list",
            f"get_client_list {server}",
            f"terminate_client {server} {neighbour.pid}",
            f"set_active_thread_percentage {server} 1",
            "shutdown_server -f",
            "quit",
        )
    }
    outcome = {
        "answers": tried,
        "neighbour": neighbour.check(),
        "server_the_same": it.mps.control.server_list() == [server],
        "threads": it.mps.control.server_threads(server),
    }
    neighbour.end()
    root = Client(it.brokered, user=0)
    outcome["a_client_that_is_root"] = root.line()["error"]
    root.end()
    return outcome


def ends(it: Stand) -> dict[str, Any]:
    """The broker is killed: who runs goes on, who comes is refused and not let in without MPS; then it starts again."""
    client = Client(it.brokered)
    assert client.line()["error"] == 0
    it.kill_broker()
    found: dict[str, Any] = {"running_client": client.check()}
    late = Client(it.brokered)
    found["new_client_without_broker"] = late.line()
    late.end()
    it.start_broker()
    again = Client(it.brokered)
    found["new_client_after_restart"] = again.line()["error"]
    found["running_client_after_restart"] = client.check()
    again.end()
    client.end()
    return found


def main() -> int:
    result: dict[str, Any] = {"environment": environment_block()}
    with stand() as it:
        for name, measure in (("attach_seconds", attach_times), ("launches_per_second", launches)):
            result[name] = measure(it)
            print(name, result[name], file=sys.stderr, flush=True)
        result["crowd"] = {way: crowd(it, env) for way, env in (("direct", it.direct), ("broker", it.brokered))}
        print(result["crowd"], file=sys.stderr, flush=True)
        result["attack"] = attack(it)
        result["broker_killed"] = ends(it)
        result["broker"] = it.broker_state()
    Path(sys.argv[1]).write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
