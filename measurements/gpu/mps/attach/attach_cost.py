"""Measures where an attach through the broker spends its time on a real GPU.

    python3 -m measurements.gpu.mps.attach.attach_cost OUT.json [SECONDS]  as root on an idle GPU, MPS on PATH

Programs start in turns: at the daemon itself; through the broker with the share's whole ceiling as their grant, for
which no limit is set; and with a smaller grant. Of the last attaches the file has the steps of the program, broker and
turns, in milliseconds since the program's first CUDA call. Ends all that it started.

A context takes 10 % more or less each time, so that its time tells the ratio to a few percent at best. What the broker
adds comes before the client has its sockets to the server. So that part is also timed by itself, by a client that says
what CUDA says and no more (`handshakes`).
"""

import json
import random
import socket
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from gpushare.mps.attach_protocol import (
    CREDENTIALS,
    END_OF_ANSWER,
    FAREWELL,
    Request,
    command_messages,
    request_message,
)
from gpushare.mps.control_socket import ControlSocket
from measurements.gpu.environment import environment_block
from measurements.gpu.mps.attach.stand import CEILING_MIB, Program, Stand, spread, stand

SECONDS = 45.0
MOST_ROUNDS = 1000
STEPS_OF = 3
PROBE_SECONDS = 2.0
HANDSHAKES = 60
HANG_UP_SECONDS = 0.03
"""The server waits for the rest of what a client says, or for its end; one that finds a word and the end at the same
moment can hang (20 ms were enough)."""
BETWEEN_SECONDS = 0.01
"""The time until the server has noticed."""
KEPT_SECONDS, SERIES_SECONDS = 0.17, 0.35
"""Times until the broker keeps no turn and has written its steps, and until the server has its own limits back."""
CLIENT = """
import ctypes, json, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
began = time.monotonic()
error = cuda.cuInit(0)
started = time.monotonic()
error = error or cuda.cuDeviceGet(ctypes.byref(device), 0) or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
print(json.dumps({"error": error, "began": began, "init": started, "context": time.monotonic()}), flush=True)
for line in open(0, closefd=False):
    pass
"""
HANDSHAKE = f"""
import json, socket, sys, time
path = sys.argv[2]
def connect():
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(path)
    return sock
def attach():
    with connect() as sock:
        sock.recv(64)
        sock.send({CREDENTIALS!r})
        sock.send({request_message(Request.ATTACH)!r})
        _, [passed], _, _ = socket.recv_fds(sock, 64, 1)
        at = time.monotonic()
        sock.send({FAREWELL!r})
    with socket.socket(fileno=passed) as server:
        server.send({CREDENTIALS!r})
        time.sleep({HANG_UP_SECONDS})
        server.shutdown(socket.SHUT_RDWR)
    time.sleep({BETWEEN_SECONDS})
    return at
began = time.monotonic()
connect().close()
first = attach()
again = time.monotonic()
second = attach()
print(json.dumps({{"first": first - began, "second": second - again}}), flush=True)
"""
SERVE = """
import asyncio, functools, json, sys, time
from pathlib import Path
from gpushare.mps.broker import attach, broker, daemon, turns
from measurements.gpu.mps.attach.stand import owners

steps = []

def note(name, began):
    if not steps:  # written when the attach is long over
        asyncio.get_running_loop().call_later(0.15, write)
    steps.append([name, began, time.monotonic()])

def write():
    with open(sys.argv[2], "a") as log:
        log.writelines(json.dumps(step) + "\\n" for step in steps)
    steps.clear()

def timed(owner, name):
    wrapped = getattr(owner, name)
    @functools.wraps(wrapped)
    async def call(*args, **kwargs):
        began = time.monotonic()
        try:
            return await wrapped(*args, **kwargs)
        finally:
            note(name.strip("_"), began)
    setattr(owner, name, call)

for owner, name in ((broker, "read_request"), (broker, "attach"), (broker, "farewell"),
                    (daemon.BrokeredDaemon, "client_socket"), (daemon.BrokeredDaemon, "until_free"),
                    (broker.Broker, "_let_in"), (broker.Broker, "_attach")):
    timed(owner, name)
ask = turns.Turns._ask

async def timed_ask(*args, **kwargs):
    began = time.monotonic()
    try:
        return await ask(*args, **kwargs)
    finally:
        note("turn is given", began)

turns.Turns._ask = timed_ask
settings = broker.BrokerSettings("bench", lambda: time.clock_gettime(time.CLOCK_BOOTTIME), owners)
asyncio.run(broker.serve(Path(sys.argv[1]), settings))
"""


class TimedSocket(ControlSocket):
    """`steps`: (command, began, ended) of each, in seconds of the monotonic clock."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(path, seconds)
        self.steps: list[tuple[str, float, float]] = []

    def run(self, *commands: str, seconds: float | None = None) -> str:
        began = time.monotonic()
        try:
            return super().run(*commands, seconds=seconds)
        finally:
            self.steps.append((commands[0].split()[0], began, time.monotonic()))


def attaches(setup: Stand, control: TimedSocket, log: Path, seconds: float) -> dict[str, Any]:
    setup.grant(all=(100, CEILING_MIB, 60), small=(50, 4096, 60))
    ways = {
        "direct": ("all", setup.direct),
        "whole grant": ("all", setup.brokered),
        "small grant": ("small", setup.brokered),
    }
    taken: dict[str, dict[str, list[float]]] = {way: {"init": [], "context": [], "both": []} for way in ways}
    steps: dict[str, list[Any]] = {way: [] for way in ways}
    end = time.monotonic() + seconds
    order = list(ways)
    while time.monotonic() < end and len(taken["direct"]["both"]) < MOST_ROUNDS:
        order.append(order.pop(0))  # each way comes first, second and last: what the one before left counts for all
        for way in order:
            pod, environment = ways[way]
            before = time.monotonic()
            client = Program(CLIENT, pod, environment)
            line = client.line()
            if line["error"]:
                raise RuntimeError(f"{way}: {line}")
            taken[way]["init"].append(line["init"] - line["began"])
            taken[way]["context"].append(line["context"] - line["init"])
            taken[way]["both"].append(line["context"] - line["began"])
            client.end()
            time.sleep(SERIES_SECONDS if way == "small grant" else KEPT_SECONDS)
            moments = [step for step in (*read(log), *control.steps) if step[1] > before]
            moments += [("cuInit", line["began"], line["init"]), ("cuCtxCreate", line["init"], line["context"])]
            steps[way].append(
                [
                    [name, *(round((at - line["began"]) * 1000, 2) for at in (began, ended))]
                    for name, began, ended in sorted(moments, key=lambda step: step[1])
                ]
            )
    commands: dict[str, list[float]] = {}
    for name, began, ended in control.steps:
        commands.setdefault(name, []).append(ended - began)
    return {
        "rounds": len(taken["direct"]["both"]),
        "seconds": {way: {part: spread(all_of) for part, all_of in parts.items()} for way, parts in taken.items()},
        "added_milliseconds": {
            way: {
                part: with_interval(
                    [1000 * (b - d) for b, d in zip(taken[way][part], taken["direct"][part], strict=True)]
                )
                for part in ("init", "context", "both")
            }
            for way in ways
        },
        "ratio_of_pairs": {
            way: with_interval([b / d for b, d in zip(taken[way]["both"], taken["direct"]["both"], strict=True)])
            for way in ways
        },
        "command_seconds": {name: spread(all_of) | {"count": len(all_of)} for name, all_of in commands.items()},
        "steps": {way: all_of[-STEPS_OF:] for way, all_of in steps.items()},
    }


def handshakes(setup: Stand, rounds: int) -> dict[str, Any]:
    """Milliseconds from a process' first call until it has its socket to the server, and from its second."""
    setup.grant(all=(100, CEILING_MIB, 60), small=(50, 4096, 60))
    daemon, broker = str(setup.mps.pipe / "control"), str(setup.gpu.attach_control)
    ways = {"direct": ("all", daemon), "whole grant": ("all", broker), "small grant": ("small", broker)}
    taken: dict[str, dict[str, list[float]]] = {way: {"first": [], "second": []} for way in ways}
    order = list(ways)
    for _ in range(rounds):
        order.append(order.pop(0))
        for way in order:
            pod, path = ways[way]
            client = Program(HANDSHAKE, pod, setup.direct, path)
            line = client.line()
            client.end()
            for which, all_of in taken[way].items():
                all_of.append(1000 * line[which])
            time.sleep(SERIES_SECONDS if way == "small grant" else KEPT_SECONDS)
    added = {
        way: {
            which: [mine - other for mine, other in zip(all_of, taken["direct"][which], strict=True)]
            for which, all_of in by_call.items()
        }
        for way, by_call in taken.items()
        if way != "direct"
    }
    for by_call in added.values():
        by_call["both"] = [sum(pair) for pair in zip(by_call["first"], by_call["second"], strict=True)]
    return {"rounds": rounds, "milliseconds": _intervals(taken), "added_milliseconds": _intervals(added)}


def _intervals(values: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, dict[str, float]]]:
    return {way: {which: with_interval(all_of) for which, all_of in by_call.items()} for way, by_call in values.items()}


def with_interval(values: list[float]) -> dict[str, float]:
    """Their median, and where it lies with 95 %, by 2,000 samples of as many values (bootstrap)."""
    chance = random.Random(1)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(2000))
    return {"median": round(median(values), 4), "from": round(medians[50], 4), "to": round(medians[-51], 4)}


def read(log: Path) -> list[tuple[str, float, float]]:
    return [(name, began, ended) for name, began, ended in map(json.loads, log.read_text().splitlines())]


def commands_over_one_connection(setup: Stand) -> list[str]:
    """What the daemon answers to two commands that are sent one after the other over one connection."""
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(PROBE_SECONDS)
        sock.connect(str(setup.mps.pipe / "control"))
        heard.append(repr(sock.recv(64)))
        sock.send(CREDENTIALS)
        sock.send(request_message(Request.COMMAND))
        for command in (f"get_server_status {setup.server}", "get_server_list"):
            try:
                for message in command_messages(command):
                    sock.send(message)
                while not heard[-1].startswith("end"):
                    message = sock.recv(4096)
                    heard.append("end" if message == END_OF_ANSWER else repr(message))
                    if not message:
                        return heard
                heard.append("next")
            except OSError as error:
                return [*heard, repr(error)]
    return heard


def main() -> int:
    out, seconds = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        log = Path(file.name)
        log.chmod(0o666)
        measure(out, log, seconds)
    return 0


def measure(out: Path, log: Path, seconds: float) -> None:
    controls: list[TimedSocket] = []

    def control(path: Path, seconds: float) -> TimedSocket:
        controls.append(TimedSocket(path, seconds))
        return controls[-1]

    with stand(serve=SERVE, words=[str(log)], turn_control=control) as setup:
        result: dict[str, Any] = {
            "environment": environment_block(),
            "attaches": attaches(setup, controls[0], log, seconds),
        }
        out.write_text(json.dumps(result, indent=1) + "\n")
        result["handshakes"] = handshakes(setup, HANDSHAKES)
        result["commands_over_one_connection"] = commands_over_one_connection(setup)
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
