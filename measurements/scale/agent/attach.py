"""What the broker and its turns add to an attach, beside a simulated MPS daemon.

    chrt -f 10 python -m measurements.scale.agent.attach --before b7bb860 --out measurements/results/scale/attach.json

A client attaches as CUDA does, in turns: to the daemon itself; through the broker with the share's whole ceiling as its
grant, for which no limit is set; and through the broker with a smaller grant. With `--before` the product of another
commit and that of now are measured in turns. It makes two contexts, as a process does
whose cuInit attaches first and whose context follows. Daemon, server, broker and supervisor's turns are the product's
own and the simulation's, each in a process of its own. A simulated daemon is a Python program, so the seconds say what
our own way costs, not what CUDA's start takes: for that see measurements/gpu/mps/attach/attach_cost.py.
`chrt` keeps the machine's other work out: an attach is a dozen turns of four processes, and each would wait for a core.
"""

import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from gpushare import simulation
from gpushare.mps.control_socket import ControlSocket
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor.turns import Terms, TurnServer
from gpushare.mps.wire import ClientGrant, DaemonLimits, GpuGrants, GrantedContainer, GrantedPod
from gpushare.simulation.client import SimulatedContext
from localcluster.paths import REPOSITORY
from measurements.scale import results
from measurements.scale.trees import trees

POD = "11111111-1111-1111-1111-111111111111"
CEILING = DaemonLimits(threads=100, memory_mib=16384)
WHOLE = ClientGrant(threads=100, memory_mib=16384, processes=8)
SMALL = ClientGrant(threads=50, memory_mib=4096, processes=8)
SECONDS = 30.0
SERVE = f"""
import asyncio, sys, time
from pathlib import Path
from gpushare.mps.broker.broker import BrokerSettings, serve
from gpushare.process.procfs import Owner
asyncio.run(serve(Path(sys.argv[1]), BrokerSettings("bench", time.monotonic, lambda _: [Owner("{POD}", "")])))
"""


class CountingSocket(ControlSocket):
    """`sent`: the commands so far."""

    sent = 0

    def run(self, *commands: str, seconds: float | None = None) -> str:
        self.sent += len(commands)
        return super().run(*commands, seconds=seconds)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the simulation did not start")
        time.sleep(0.02)


@contextmanager
def process(*argv: str, **environment: str) -> Iterator[None]:
    started = subprocess.Popen(argv, env=os.environ | environment, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        started.terminate()
        started.wait(SECONDS)


@contextmanager
def stand(root: Path) -> Iterator[tuple[GpuDir, CountingSocket, Path]]:
    """The GPU directory, the turns' commands, and the daemon's own pipe directory."""
    driver, pipe, gpu = root / "driver", root / "pipe", GpuDir(root / "gpus" / "GPU-0")
    for directory in (driver, pipe, gpu.client, gpu.attach, gpu.broker):
        directory.mkdir(parents=True)
    simulated = {"GPUSHARE_SIMULATION_DIR": str(driver), "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
    gpushare = (sys.executable, "-m", "gpushare.cli.main", "simulated-driver", "--directory", str(driver))
    control = ControlSocket(pipe / "control", SECONDS)
    with process(*gpushare, "--node", "bench", "--gpus", "1", "--server-init-ms", "5", "--client-init-ms", "0"):
        until((driver / "dev/nvidia0").exists)
        program = str(simulation.bin_dir() / "nvidia-cuda-mps-control")
        with process(program, "-f", "-multiuser-server", **simulated, CUDA_MPS_LOG_DIRECTORY=str(root / "log")):
            until((pipe / "control").exists)
            control.start_server()
            [server] = control.server_list()
            gpu.client_share.write_text("bench")
            gpu.client_control.hardlink_to(pipe / "control")
            commands = CountingSocket(pipe / "control", 2.0)
            turns = TurnServer(gpu, commands, lambda: Terms(server, CEILING), threading.Lock(), os.geteuid())
            turns.start()
            try:
                with process(sys.executable, "-c", SERVE, str(gpu.path.parent)):
                    until(gpu.attach_control.exists)
                    yield gpu, commands, pipe
            finally:
                turns.end()


def attach_seconds(environment: dict[str, str]) -> float:
    """Seconds until a process of its own has two contexts: one that attaches more often is looked at more closely."""
    answer, asked = multiprocessing.Pipe(duplex=False)
    client = multiprocessing.get_context("fork").Process(target=_attach, args=(environment, asked))
    client.start()
    taken = float(answer.recv()) if answer.poll(SECONDS) else math.nan
    client.join(SECONDS)
    return taken


def _attach(environment: dict[str, str], asked: Connection) -> None:
    began = time.monotonic()
    contexts = [SimulatedContext.create(environment) for _ in range(2)]
    asked.send(time.monotonic() - began)
    for context in contexts:
        context.close()


Taken = dict[str, list[float]]
"""Seconds of each attach, by way; those of one place were taken one after the other."""


def measure(pairs: int) -> tuple[Taken, dict[str, int]]:
    """(seconds, commands to the server in all by way)."""
    with tempfile.TemporaryDirectory(prefix="attach-") as name, stand(Path(name)) as (gpu, commands, pipe):
        ways = {"direct": (pipe, WHOLE), "broker, whole": (gpu.attach, WHOLE), "broker, small": (gpu.attach, SMALL)}
        taken: Taken = {way: [] for way in ways}
        sent = dict.fromkeys(ways, 0)
        for _ in range(pairs):
            for way, (directory, grant) in ways.items():
                pod = GrantedPod(uid=POD, namespace="bench", name="bench", containers=[
                    GrantedContainer(name="app", grant=grant)])  # fmt: skip
                write_model(gpu.grants, GpuGrants(uuid=gpu.uuid, share="bench", pods=[pod]))
                before = commands.sent
                environment = {"GPUSHARE_SIMULATION_DIR": f"{name}/driver", "CUDA_MPS_PIPE_DIRECTORY": str(directory)}
                taken[way].append(attach_seconds(environment))
                time.sleep(0.5)  # until the limits are the ceiling again
                sent[way] += commands.sent - before
    return taken, sent


def measured_in(tree: Path, pairs: int) -> tuple[Taken, dict[str, int]]:
    """Figures measured by this program, with the product as it is in `tree`."""
    environment = os.environ | {"PYTHONPATH": f"{tree}/operator:{tree}/workload:{REPOSITORY}"}
    command = [sys.executable, "-m", "measurements.scale.agent.attach", "--ways", "--pairs", str(pairs)]
    # Not in a tree: its own tests would be found first.
    done = subprocess.run(command, env=environment, cwd="/", stdout=subprocess.PIPE, text=True, check=True)
    taken, sent = json.loads(done.stdout)
    return taken, sent


def summary(runs: list[tuple[Taken, dict[str, int]]]) -> dict[str, dict[str, float]]:
    """`added`: what the way took longer than the direct one just before it."""
    figures = {}
    for way in runs[0][0]:
        values = [1000 * seconds for taken, _ in runs for seconds in taken[way]]
        direct = [1000 * seconds for taken, _ in runs for seconds in taken["direct"]]
        added = [seconds - other for seconds, other in zip(values, direct, strict=True)]
        figures[way] = {
            "medianMilliseconds": round(statistics.median(values), 3),
            "p10Milliseconds": round(statistics.quantiles(values, n=10)[0], 3),
            "p90Milliseconds": round(statistics.quantiles(values, n=10)[-1], 3),
            "addedMedianMilliseconds": round(statistics.median(added), 3),
            "commandsEach": round(sum(sent[way] for _, sent in runs) / len(values), 2),
        }
    return figures


def compare(commit: str, pairs: int, rounds: int) -> dict[str, object]:
    """The product of `commit` and that of now in turns, so that the machine's other work meets both."""
    with tempfile.TemporaryDirectory() as scratch, trees(commit, Path(scratch)) as compared:
        runs: dict[str, list[tuple[Taken, dict[str, int]]]] = {which: [] for which in compared}
        for _ in range(rounds):
            for which, tree in compared.items():
                runs[which].append(measured_in(tree, pairs // rounds))
        return {which: summary(figures) for which, figures in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=6, help="turns of the two products, with --before")
    parser.add_argument("--before", default="", help="a commit to compare with")
    results.add_out(parser)
    parser.add_argument("--ways", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ways:
        print(json.dumps(measure(args.pairs)))
        return
    compared = (
        compare(args.before, args.pairs, args.rounds) if args.before else {"after": summary([measure(args.pairs)])}
    )
    results.write({"pairs": args.pairs, "environment": results.machine(), **compared}, args.out)


if __name__ == "__main__":
    main()
