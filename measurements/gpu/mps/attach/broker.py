"""The attach broker on a real GPU: what it costs, whom it lets in and with what, and what attacks on it do.

    python3 -m measurements.gpu.mps.attach.broker OUT.json  as root on an idle GPU, nvidia-cuda-mps-control on PATH

Compared in turns: clients that connect to the daemon itself, as before there was a broker, and clients that connect to
the broker. Ends all that it started.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpushare.mps.control import PROGRAM, ControlError
from measurements.gpu.environment import environment_block
from measurements.gpu.mps.attach.stand import CEILING_MIB, Program, Stand, spread, stand

ATTACHES, LAUNCHES, RATES = 15, 24, 3
"""Repeats of each way, in turns."""
CROWD = 48
"""What one GPU takes with this driver."""
KILLS, KILLS_AT_A_TIME, MOST_HANGS = 240, 10, 6
SIZES = (4, 6, 8, 10, 12, 14, 16, 18, 20, 24)
"""Percent of the threads, of the clients of a crowd."""
SIDE_BY_SIDE = (10, 20, 30, 40)
RATE = """
import json, sys, time
import cupy
source = '''extern "C" __global__ void spin(float* x, int n) {
    float a = threadIdx.x; for (int i = 0; i < n; i++) a = a * 1.0001f + 0.5f; if (a < 0) x[0] = a; }
extern "C" __global__ void add(float* x) { x[blockIdx.x * 256 + threadIdx.x] += 1.0f; }
extern "C" __global__ void where(int* seen) {
    int s; asm volatile("mov.u32 %0, %smid;" : "=r"(s)); if (threadIdx.x == 0) atomicAdd(seen + s, 1);
    long long t = clock64(); while (clock64() - t < 20000); }'''
module = cupy.RawModule(code=source)
spin, add, where = (module.get_function(name) for name in ("spin", "add", "where"))
data = cupy.zeros(8 * 256, dtype=cupy.float32)
stream = cupy.cuda.get_current_stream()
def rate(kernel, grid, arguments, seconds):
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        kernel((grid,), (256,), arguments)
        stream.synchronize()
        done += 1
    return done / seconds
seen = cupy.zeros(256, dtype=cupy.int32)
where((16384,), (128,), (seen,))
rate(spin, 132 * 8, (data, 20000), 0.3)
print(json.dumps({"used_sms": int((seen > 0).sum())}), flush=True)
for line in open(0, closefd=False):
    kind, seconds = line.split()
    how = (add, 8, (data,)) if kind == "small" else (spin, 132 * 8, (data, 20000))
    value = rate(*how, float(seconds))
    print(json.dumps({"rate": value}), flush=True)
"""
"""Answers "small 2" with launches per second of 8 blocks, and "full 2" with those of a kernel that fills the GPU."""

PEER = """
import socket, sys, time
how, path = sys.argv[2], sys.argv[3]
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(path)
sock.recv(64)
sock.send(b"OUTBCRED\\0")
sock.send(b"\\2\\0\\0\\0")
data, descriptors, _, _ = socket.recv_fds(sock, 64, 1)
passed = socket.socket(fileno=descriptors[0])
print("has its socket", flush=True)
if how == "closes":
    passed.close()
if how == "garbage":
    passed.send(b"\\xff" * 512)
if how == "shuts":
    passed.shutdown(socket.SHUT_RDWR)
time.sleep(60)
"""
"""A peer that speaks the protocol and does not keep to it."""


def _ratio(times: dict[str, list[float]]) -> dict[str, Any]:
    ratios = [b / d for b, d in zip(times["broker"], times["direct"], strict=True)]
    return {way: spread(values) for way, values in times.items()} | {"ratio": spread(ratios), "repeats": len(ratios)}


def attach_times(setup: Stand) -> dict[str, Any]:
    """Seconds from a process' first CUDA call to its context, in turns; the broker's with a grant below the ceiling."""
    times: dict[str, list[float]] = {"direct": [], "broker": []}
    setup.grant(all=(100, CEILING_MIB, 60), small=(50, 4096, 1))
    for _ in range(ATTACHES):
        for way, environment in (("direct", setup.direct), ("broker", setup.brokered)):
            client = setup.client("small", environment)
            first = client.line()
            if first["error"] or client.pid not in setup.listed():
                raise RuntimeError(f"{way}: {first}, listed: {setup.listed()}")
            times[way].append(first["seconds"])
            client.end()
    return _ratio(times)


def launches(setup: Stand) -> dict[str, Any]:
    """Kernels per second of one client, launched and waited for one by one, in turns."""
    rates: dict[str, list[float]] = {"direct": [], "broker": []}
    clients = {way: Program(RATE, "all", env) for way, env in (("direct", setup.direct), ("broker", setup.brokered))}
    for client in clients.values():
        client.line()
    for number in range(LAUNCHES):
        for way in sorted(clients, reverse=bool(number % 2)):
            rates[way].append(clients[way].ask("small 1")["rate"])
    for client in clients.values():
        client.end()
    return _ratio(rates)


def crowd(setup: Stand) -> dict[str, Any]:
    """So many clients at once, of ten sizes: seconds until the last has its context, and the SMs that each one sees."""
    pods = {f"p{number}": SIZES[number % len(SIZES)] for number in range(CROWD)}
    setup.grant(**{pod: (threads, 1024, 1) for pod, threads in pods.items()})
    outcome: dict[str, Any] = {"clients": CROWD, "sizes": list(SIZES)}
    for way, environment in (("direct", setup.direct), ("broker", setup.brokered)):
        began = time.monotonic()
        clients = {pod: setup.client(pod, environment) for pod in pods}
        lines = {pod: client.line() for pod, client in clients.items()}
        sms: dict[int, set[int]] = {}
        for pod, line in lines.items():
            sms.setdefault(pods[pod], set()).add(line.get("sms", 0))
        outcome[way] = {
            "seconds": round(time.monotonic() - began, 2),
            "errors": sorted({str(line["error"]) for line in lines.values()}),
            "listed": len(setup.listed()),
            "sms_by_percent": {size: sorted(seen) for size, seen in sorted(sms.items())},
        }
        for client in clients.values():
            client.end()
    return outcome


def side_by_side(setup: Stand) -> dict[str, Any]:
    """Clients that ask for 100 % by their variable: what each gets of a kernel that fills the GPU, with all at once."""
    setup.grant(all=(100, CEILING_MIB, 60), **{f"p{size}": (size, 2048, 1) for size in SIDE_BY_SIDE})
    clients = {size: Program(RATE, f"p{size}", setup.brokered) for size in SIDE_BY_SIDE}
    whole = Program(RATE, "all", setup.brokered)
    used = {size: client.line()["used_sms"] for size, client in clients.items()}
    used[100] = whole.line()["used_sms"]
    alone: dict[int, list[float]] = {size: [] for size in (*SIDE_BY_SIDE, 100)}
    together: dict[int, list[float]] = {size: [] for size in SIDE_BY_SIDE}
    for _ in range(RATES):
        for size, client in {**clients, 100: whole}.items():
            alone[size].append(client.ask("full 1")["rate"])
        answers: dict[int, float] = {}

        def ask(size: int, client: Program, answers: dict[int, float] = answers) -> None:
            answers[size] = client.ask("full 2")["rate"]

        threads = [threading.Thread(target=ask, args=item) for item in clients.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for size, value in answers.items():
            together[size].append(value)
    for client in (*clients.values(), whole):
        client.end()
    return {
        "repeats": RATES,
        "used_sms": used,
        "launches_per_second_alone": {size: spread(values) for size, values in alone.items()},
        "launches_per_second_together": {size: spread(values) for size, values in together.items()},
    }


def variables(setup: Stand) -> dict[str, Any]:
    """A grant of 10 % and 2 GiB, and what a client makes of it by its own variables."""
    setup.grant(small=(10, 2048, 1))
    changed: dict[str, dict[str, str | None]] = {
        "unset": {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": None},
        "threads 100": {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"},
        "threads garbage": {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "garbage"},
        "memory 64G": {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=64G"},
        "memory garbage": {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "garbage"},
    }
    lines = {}
    for name, changes in changed.items():
        merged = {**setup.brokered, **changes}
        client = setup.client("small", {key: value for key, value in merged.items() if value is not None})
        lines[name] = {key: value for key, value in client.line().items() if key != "seconds"}
        client.end()
    return lines


def admission(setup: Stand) -> dict[str, Any]:
    """Who is not let in, and CUDA's own error: no pod, no grant, one process too many."""
    setup.grant(small=(10, 2048, 2))
    first, second = setup.client("small"), setup.client("small")
    outcome: dict[str, Any] = {"granted": [first.line()["error"], second.line()["error"]]}
    third = setup.client("small")
    outcome["one_process_too_many"] = third.line()["error"]
    first.end()
    fourth = setup.client("small")
    outcome["after_one_has_ended"] = fourth.line()["error"]
    stranger = setup.client("stranger")
    outcome["a_pod_without_a_grant"] = {key: value for key, value in stranger.line().items() if key != "sms"}
    outcome["those_that_run"] = [second.ask()["error"], fourth.ask()["error"]]
    outcome["listed"] = len(setup.listed())
    root = setup.client("small", user=0)
    second.end()
    root.end()
    root = setup.client("small", user=0)
    outcome["a_client_that_is_root"] = root.line()["error"]
    for client in (third, fourth, stranger, root):
        client.end()
    outcome["refusals"] = setup.refusals()
    return outcome


def commands(environment: dict[str, str], *script: str) -> str:
    """What the control program prints as the node's root, and how it ends."""
    done = subprocess.run(
        [PROGRAM], input="".join(f"{line}\n" for line in script), env=environment, capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip
    return f"exit {done.returncode}: {(done.stdout + done.stderr).strip()[:200]}"


def command_attack(setup: Stand) -> dict[str, Any]:
    """Root with nothing but the clients' directory tries to end and to widen others."""
    setup.grant(all=(100, CEILING_MIB, 60))
    neighbour = setup.client()
    assert neighbour.line()["error"] == 0
    tried = {
        script: commands(setup.brokered, script)
        for script in (
            "get_server_list",
            f"terminate_client {setup.server} {neighbour.pid}",
            f"set_active_thread_percentage {setup.server} 1",
            "shutdown_server -f",
            "quit",
        )
    }
    outcome = {"answers": tried, "neighbour": neighbour.ask(), "server_the_same": setup.listed() == {neighbour.pid}}
    neighbour.end()
    return outcome


def stuck_peers(setup: Stand) -> dict[str, Any]:
    """Peers that get their socket and do not go on: how long the next client's start takes beside each of them."""
    setup.grant(all=(100, CEILING_MIB, 60), **dict.fromkeys(("silent", "closes", "garbage", "stopped"), (10, 1024, 4)))
    running = setup.client()
    assert running.line()["error"] == 0
    outcome: dict[str, Any] = {}
    for how in ("silent", "closes", "garbage"):
        peer = Program(PEER, how, setup.brokered, how, str(setup.gpu.attach_control))
        assert peer.text() == "has its socket"
        client = setup.client()
        line = client.line()
        outcome[how] = {"next_client": line["error"], "seconds": round(line["seconds"], 2), "running": running.ask()}
        client.end()
        os.kill(peer.pid, signal.SIGKILL)
        peer.end()
    stopped = setup.client("stopped")
    time.sleep(0.03)
    os.kill(stopped.pid, signal.SIGSTOP)
    client = setup.client()
    line = client.line()
    outcome["a process stopped at its start"] = {"next_client": line["error"], "seconds": round(line["seconds"], 2)}
    os.kill(stopped.pid, signal.SIGCONT)
    for program in (client, stopped, running):
        program.end()
    outcome["server_answers"], outcome["refusals"] = setup.answers(), setup.refusals()
    return outcome


def killed_at_start(way: str) -> dict[str, Any]:
    """Processes that are killed at every moment of their start: how often the server answers no more after that.

    In daemons of its own: one whose server hangs cannot be asked to end.
    """
    moments = [0.02 + 0.0008 * number for number in range(KILLS)]
    outcome: dict[str, Any] = {"kills": 0, "hung_after_kill_at_seconds": [], "next_client": []}
    while moments and len(outcome["hung_after_kill_at_seconds"]) < MOST_HANGS:
        with suppress(ControlError), stand() as setup:
            environment = setup.direct if way == "direct" else setup.brokered
            while moments:
                killed, moments = moments[:KILLS_AT_A_TIME], moments[KILLS_AT_A_TIME:]
                for moment in killed:
                    client = setup.client(environment=environment)
                    time.sleep(moment)
                    os.kill(client.pid, signal.SIGKILL)
                    client.end()
                outcome["kills"] += len(killed)
                if not answers_within(setup, 12):
                    outcome["hung_after_kill_at_seconds"].append([round(killed[0], 4), round(killed[-1], 4)])
                    outcome["refusals"] = setup.refusals() if way == "broker" else {}
                    kill_daemon(setup)
                    break
            else:
                client = setup.client(environment=environment)
                outcome["next_client"].append(client.line()["error"])
                client.end()
    return outcome


def answers_within(setup: Stand, seconds: float) -> bool:
    """The server may be busy with the end of a client, and a broker with a silent one."""
    end = time.monotonic() + seconds
    while not setup.answers():
        if time.monotonic() > end:
            return False
    return True


def kill_daemon(setup: Stand) -> None:
    """A daemon that waits for a hung server takes no command."""
    for pid in (setup.server, int((setup.mps.pipe / f"{PROGRAM}.pid").read_text())):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ends(setup: Stand) -> dict[str, Any]:
    """The broker is killed: who runs goes on; then it starts again, and knows who runs."""
    setup.grant(all=(100, CEILING_MIB, 60), small=(10, 2048, 1))
    client = setup.client("small")
    assert client.line()["error"] == 0
    setup.kill_broker()
    outcome: dict[str, Any] = {"running_client": client.ask()["error"]}
    late = setup.client()
    outcome["new_client_without_broker"] = {key: value for key, value in late.line().items() if key != "seconds"}
    late.end()
    setup.start_broker()
    again, second = setup.client(), setup.client("small")
    outcome["new_client_after_restart"] = again.line()["error"]
    outcome["one_process_too_many_after_restart"] = second.line()["error"]
    outcome["running_client_after_restart"] = client.ask()["error"]
    for program in (again, second, client):
        program.end()
    return outcome


def flood(setup: Stand) -> dict[str, Any]:
    """One container holds all the connections that it can get: whether another one's process starts."""
    setup.grant(all=(100, CEILING_MIB, 60))
    code = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = []
for _ in range(3000):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(1)
    try:
        sock.connect(sys.argv[2])
    except OSError:
        continue
    held.append(sock)
print(len(held), flush=True)
time.sleep(60)
"""
    greedy = Program(code, "greedy", setup.brokered, str(setup.gpu.attach_control))
    held = greedy.text()
    client = setup.client()
    line = client.line()
    os.kill(greedy.pid, signal.SIGKILL)
    greedy.end()
    client.end()
    return {"connections": int(held), "client": line["error"], "seconds": round(line["seconds"], 2)}


def hung_server(setup: Stand) -> dict[str, Any]:
    """What remains: a peer that shuts its socket down without a word. Last, since the server is lost with it."""
    setup.grant(all=(100, CEILING_MIB, 60), shuts=(10, 1024, 1))
    running = setup.client()
    assert running.line()["error"] == 0
    peer = Program(PEER, "shuts", setup.brokered, "shuts", str(setup.gpu.attach_control))
    assert peer.text() == "has its socket"
    time.sleep(4)
    outcome = {"server_answers": setup.answers(), "running": running.ask(), "refusals": setup.refusals()}
    os.kill(peer.pid, signal.SIGKILL)
    for program in (peer, running):
        program.end()
    return outcome


def main() -> int:
    result: dict[str, Any] = {"environment": environment_block()}
    out = Path(sys.argv[1])
    measures = (attach_times, launches, crowd, side_by_side, variables, admission, command_attack, stuck_peers,
                ends, flood)  # fmt: skip
    with stand() as setup:
        for measure in measures:
            try:
                result[measure.__name__] = measure(setup)
            except Exception as error:  # noqa: BLE001 - the other measures count all the same
                result[measure.__name__] = {"failed": repr(error)[:500]}
            print(measure.__name__, json.dumps(result[measure.__name__]), file=sys.stderr, flush=True)
            out.write_text(json.dumps(result, indent=2) + "\n")
    for way in ("direct", "broker"):
        try:
            result.setdefault("killed_at_start", {})[way] = killed_at_start(way)
        except Exception as error:  # noqa: BLE001 - as above
            result.setdefault("killed_at_start", {})[way] = {"failed": repr(error)[:500]}
        print(f"killed_at_start, {way}", json.dumps(result["killed_at_start"][way]), file=sys.stderr, flush=True)
        out.write_text(json.dumps(result, indent=2) + "\n")
    with suppress(ControlError), stand() as setup:  # its daemon cannot be asked to end any more
        try:
            result["hung_server"] = hung_server(setup)
        finally:
            kill_daemon(setup)
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["hung_server"]), file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
