"""Whom the MPS server and NVML list, and when: after each call of CUDA, beside a broker, and with a forged PID.

    python3 -m measurements.gpu.mps.attach.identity OUT.json  as root on an idle GPU, MPS and a C compiler on PATH

Prints and writes one JSON object. Each list is of all clients, and a name stands for each process: `me` is the client
of that step. What the broker relies on: `listing` (milliseconds from the end of an attach, as the broker sees it, until
the server lists its process; None: not within LISTING_SECONDS), `stages` (who is listed after each call) and `forged`
(a process in a user and PID namespace of its own that changes the PID in CUDA's own message by a preloaded `sendmsg`:
who is listed, and whether `terminate_client` for the named PID ends it in order). Ends all that it started.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpushare.mps.control import ControlError
from gpushare.nvml.real import PynvmlNvml
from measurements.gpu.environment import environment_block
from measurements.gpu.mps.attach.stand import CEILING_MIB, Program, Stand, spread, stand

REPEATS = 15
LISTING_SECONDS = 1.0
SETTLE_SECONDS = 0.5
ANSWER_SECONDS = 30.0
LONG_KERNEL_MS = 3000
CONTEXTS = 60
CLIENT = """
import ctypes, json, os, sys, time
PTX = b'''
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns) {
    .reg .u64 %t<4>; .reg .pred %p;
    ld.param.u64 %t0, [ns]; mov.u64 %t1, %globaltimer;
again:
    mov.u64 %t2, %globaltimer; sub.u64 %t3, %t2, %t1; setp.lt.u64 %p, %t3, %t0;
    @%p bra again;
    ret;
}'''
cuda = ctypes.CDLL("libcuda.so.1")
made, device, spin, module = [], ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
def create():
    context = ctypes.c_void_p()
    error = cuda.cuDeviceGet(ctypes.byref(device), 0) or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    if not error:
        made.append(context)
    return error
def launch(ms):
    error = 0 if module else cuda.cuModuleLoadData(ctypes.byref(module), PTX)
    error = error or cuda.cuModuleGetFunction(ctypes.byref(spin), module, b"spin")
    value = ctypes.c_uint64(int(ms) * 1000000)
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(value), ctypes.c_void_p))
    return error or cuda.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
def sockets():
    there = (f"/proc/self/fd/{number}" for number in range(3, 256))
    return sum(os.readlink(name).startswith("socket:") for name in there if os.path.lexists(name))
def fork():
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, json.dumps([cuda.cuInit(0), create()]).encode())
        time.sleep(600)
    return {"child": child, "init and create": json.loads(os.read(reading, 64))}
for line in open(0, closefd=False):
    verb, _, argument = line.strip().partition(" ")
    if verb == "init": error = cuda.cuInit(0)
    elif verb == "create": error = create()
    elif verb == "many":
        error = 0
        while not error and len(made) < int(argument): error = create()
    elif verb == "destroy": error = cuda.cuCtxDestroy_v2(made.pop())
    elif verb == "launch": error = launch(argument)
    elif verb == "sync": error = cuda.cuCtxSynchronize()
    elif verb == "fork": error = fork()
    elif verb == "exec":
        print(json.dumps({"error": 0}), flush=True)
        os.execv(sys.executable, sys.orig_argv)
    else: error = 0
    print(json.dumps({"error": error, "made": len(made), "sockets": sockets()}), flush=True)
"""
"""A verb a line, a JSON object each."""

SERVE = """
import asyncio, json, socket, struct, sys, time
from pathlib import Path
from gpushare.mps.broker import broker
from measurements.gpu.mps.attach.stand import owners

attach, looking = broker.attach, set()

async def look(pid, server, daemon, nth, ended):
    first = None
    while first is None and time.monotonic() - ended < float(sys.argv[3]):
        try:
            if pid in await daemon.contexts():
                first = (time.monotonic() - ended) * 1000
        except Exception:
            pass
        await asyncio.sleep(0.0005)
    with open(sys.argv[2], "a") as log:
        log.write(json.dumps({"pid": pid, "nth": nth, "ms": first}) + "\\n")

times = {}

async def timed(peer, turn, daemon, wanted, under_way):
    inode = await attach(peer, turn, daemon, wanted, under_way)
    pid = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    times[pid] = times.get(pid, 0) + 1
    task = asyncio.create_task(look(pid, turn.server_pid, daemon, times[pid], time.monotonic()))
    looking.add(task)
    task.add_done_callback(looking.discard)
    return inode

broker.attach = timed
settings = broker.BrokerSettings("bench", lambda: time.clock_gettime(time.CLOCK_BOOTTIME), owners)
asyncio.run(broker.serve(Path(sys.argv[1]), settings))
"""
"""The broker; it writes when the server lists the process of each attach."""

FORGE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
ssize_t sendmsg(int fd, const struct msghdr *given, int flags) {
    ssize_t (*next)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
    struct msghdr message = *given;
    char room[CMSG_SPACE(sizeof(struct ucred))];
    struct ucred *named = NULL;
    struct sockaddr_un address;
    socklen_t size = sizeof address;
    const char *pid = getenv("FORGE_PID");
    if (pid && !getsockname(fd, (struct sockaddr *)&address, &size) && address.sun_family == AF_UNIX) {
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
            if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) named = (struct ucred *)CMSG_DATA(c);
        int own = named != NULL;
        if (!own && !message.msg_controllen) {
            message.msg_control = memset(room, 0, sizeof room);
            message.msg_controllen = sizeof room;
            struct cmsghdr *c = CMSG_FIRSTHDR(&message);
            c->cmsg_level = SOL_SOCKET; c->cmsg_type = SCM_CREDENTIALS; c->cmsg_len = CMSG_LEN(sizeof(struct ucred));
            named = (struct ucred *)CMSG_DATA(c);
        }
        if (named) {
            named->pid = atoi(pid); named->uid = getuid(); named->gid = getgid();
            fprintf(stderr, "forge: PID %s on socket %d, credentials of its own: %d\n", pid, fd, own);
        }
    }
    return next(fd, &message, flags);
}
"""
FORGER = """
import os, signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
code, how = sys.argv[2], sys.argv[3]
named = subprocess.Popen(["sleep", "600"])
if how == "another client":
    other = subprocess.Popen([sys.executable, "-c", code, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for verb in (b"init\\n", b"create\\n"):
        other.stdin.write(verb); other.stdin.flush(); other.stdout.readline()
    named.kill(); named = other
os.environ |= {"FORGE_PID": str(named.pid), "LD_PRELOAD": sys.argv[4]}
os.execv(sys.executable, [sys.executable, "-c", code, sys.argv[1]])
"""
"""PID 1 of a PID namespace, which names another process of it."""


class Lists:
    """Who is listed, by the names that the steps gave to the processes."""

    def __init__(self, setup: Stand) -> None:
        self._setup, self._nvml, self.names = setup, PynvmlNvml(), {setup.server: "server"}
        self._uuid = self._nvml.gpus().infos[0].uuid

    def now(self) -> dict[str, Any]:
        time.sleep(SETTLE_SECONDS)
        control = self._setup.mps.control
        devices = control.run("get_device_client_list")
        rows = re.findall(r"^(\d+)\.(\d+)$", devices, re.MULTILINE)
        processes = self._nvml.processes(self._uuid)
        return {
            "get_client_list": [self._name(pid) for pid in control.clients(self._setup.server)],
            "device_rows": [f"{self._name(int(pid))}.{context}" for pid, context in rows],
            "ps": [self._name(int(pid)) for pid in re.findall(r"^(\d+) ", control.run("ps"), re.MULTILINE)],
            "nvml_mps": [self._name(process.pid) for process in processes.mps_clients],
            "nvml_compute": [self._name(process.pid) for process in processes.compute],
        }

    def _name(self, pid: int) -> str:
        return self.names.get(pid, f"{pid}{'' if Path(f'/proc/{pid}').exists() else ' (no process)'}")


def listing(setup: Stand, lines: Path) -> dict[str, Any]:
    """By the attach of its process: 1 is cuInit's, 2 and 3 those of its two contexts."""
    for _ in range(REPEATS):
        client = Program(CLIENT, "all", setup.brokered)
        said = [client.ask(verb) for verb in ("init", "create", "create")]
        if any(line["error"] for line in said):
            raise RuntimeError(str(said))
        time.sleep(LISTING_SECONDS + 0.1)
        client.end()
    outcome: dict[str, Any] = {}
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    for nth in sorted({line["nth"] for line in told}):
        times = [line["ms"] for line in told if line["nth"] == nth]
        listed = [ms for ms in times if ms is not None]
        outcome[str(nth)] = {"attaches": len(times), "never_listed": times.count(None)}
        outcome[str(nth)] |= {"ms": spread(listed)} if listed else {}
    return outcome


def stages(setup: Stand) -> dict[str, Any]:
    """One process, and who is listed after each call; then a child of it, and its next program."""
    lists, client = Lists(setup), Program(CLIENT, "all", setup.direct)
    lists.names[client.pid] = "me"
    outcome: dict[str, Any] = {}
    for step, verb in enumerate(("init", "create", "create", "destroy", "destroy", "create")):
        answer = client.ask(verb)
        outcome[f"{step} {verb}"] = {"error": answer["error"], "sockets": answer["sockets"]} | lists.now()
    forked = client.ask("fork")["error"]
    lists.names[forked["child"]] = "child"
    outcome["child forked with a context"] = {"its init and create": forked["init and create"]} | lists.now()
    os.kill(forked["child"], signal.SIGKILL)
    client.ask("exec")
    outcome["exec"] = lists.now()
    outcome["exec, init"] = {"error": client.ask("init")["error"]} | lists.now()
    outcome["exec, create"] = {"error": client.ask("create")["error"]} | lists.now()
    os.kill(client.pid, signal.SIGKILL)
    client.end()
    outcome["killed"] = lists.now()
    return outcome


def many(setup: Stand) -> dict[str, Any]:
    """One process that makes as many contexts as it gets; and one that makes and destroys them."""
    lists, client = Lists(setup), Program(CLIENT, "all", setup.direct)
    lists.names[client.pid] = "me"
    client.ask("init")
    answer = client.ask(f"many {CONTEXTS}")
    shown = lists.now()
    outcome = {"made": answer["made"], "error": answer["error"], "device_rows": shown["device_rows"]}
    outcome |= {"get_client_list": shown["get_client_list"], "nvml_mps": shown["nvml_mps"]}
    while client.ask("destroy")["made"] > 1:
        pass
    for _ in range(20):
        client.ask("create")
        client.ask("destroy")
    outcome["after 20 made and destroyed"] = lists.now()["device_rows"]
    client.end()
    return outcome


def forged(setup: Stand, library: str, how: str) -> dict[str, Any]:
    """`how`: which process the forger names."""
    lists, outcome = Lists(setup), dict[str, Any]()
    neighbour = Program(CLIENT, "all", setup.direct)
    outcome["neighbour_starts"] = [neighbour.ask(verb)["error"] for verb in ("init", "create")]
    lists.names[neighbour.pid] = "neighbour"
    command = ["unshare", "--user", "--map-root-user", "--pid", "--mount-proc", "--fork", "--kill-child"]
    process = subprocess.Popen(
        [*command, sys.executable, "-c", FORGER, "--pod=all", CLIENT, how, library], env=setup.direct,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, user=1000, group=1000,
        extra_groups=[],
    )  # fmt: skip

    def ask(verb: str) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        print(verb, file=process.stdin, flush=True)
        if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
            raise RuntimeError(f"{verb}: no answer within {ANSWER_SECONDS:.0f} s")
        line = process.stdout.readline()
        return json.loads(line) if line else {"error": "ended"}

    try:
        outcome["init"] = ask("init")["error"]
        forger = child_of(process.pid)
        lists.names |= dict.fromkeys(children_of(forger), "another process of it") | {forger: "forger"}
        outcome["after init"] = lists.now()
        outcome["create"] = ask("create")["error"]
        outcome["after create"] = lists.now()
        named = [int(pid) for pid in children_of(forger)]
        outcome["sync"] = ask("sync")["error"]
        if how == "ended":
            for pid in named:
                os.kill(pid, signal.SIGKILL)
            outcome["named process has ended"] = lists.now()
        outcome["launch"] = ask(f"launch {LONG_KERNEL_MS}")["error"]
        outcome["terminate_client for the named PID"] = [answered(setup, pid) for pid in named]
        os.kill(forger, signal.SIGKILL)
        outcome["forger killed in mid-kernel after that: neighbour"] = neighbour.ask("sync")["error"]
        outcome["forger killed"] = lists.now()
        outcome["server"] = {"answers": setup.answers(), "the_same": setup.mps.control.server_list() == [setup.server]}
    finally:
        process.kill()
        outcome["stderr"] = process.communicate()[1][-600:]
        with suppress(BrokenPipeError):
            neighbour.end()
    return outcome


def answered(setup: Stand, pid: int) -> dict[str, Any]:
    began = time.monotonic()
    try:
        answer: object = setup.mps.control.terminate_client(setup.server, pid)
    except ControlError as error:
        answer = str(error)
    return {"answer": answer, "seconds": round(time.monotonic() - began, 3)}


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def child_of(pid: int) -> int:
    [child] = children_of(pid)
    return child


def compiled(directory: Path) -> str:
    source, library = directory / "forge.c", directory / "forge.so"
    source.write_text(FORGE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True, timeout=60)
    directory.chmod(0o755)
    library.chmod(0o755)
    return str(library)


def main() -> int:
    result: dict[str, Any] = {"environment": environment_block()}
    out = Path(sys.argv[1])

    def measure(name: str, step: Callable[[], dict[str, Any]]) -> None:
        try:
            result[name] = step()
        except Exception as error:  # noqa: BLE001 - the other steps count all the same
            result[name] = {"failed": repr(error)[:500]}
        out.write_text(json.dumps(result, indent=2) + "\n")
        print(name, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        lines = directory / "lines"
        lines.touch()
        directory.chmod(0o755)
        lines.chmod(0o666)
        with stand(SERVE, (str(lines), str(LISTING_SECONDS))) as setup:
            setup.grant(all=(100, CEILING_MIB, 60))
            measure("listing", lambda: listing(setup, lines))
            measure("stages", lambda: stages(setup))
            measure("many", lambda: many(setup))
        library = compiled(directory)
        for how in ("alive", "ended", "another client"):
            with suppress(ControlError), stand() as setup:
                measure(f"forged, {how}", lambda setup=setup, how=how: forged(setup, library, how))
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
