"""The steps by name. Exit code 0: every case of every way has figures; 1: not; 2: misuse."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from measurements.gpu.stack import bring
from measurements.gpu.stack.place import SIMULATED_RESULTS, WORK
from measurements.gpu.stack.steps import Steps
from measurements.peers import build, page, table
from measurements.peers.burst_table import CASE
from measurements.peers.cases import CASES, Case, burst
from measurements.peers.results import Results
from measurements.peers.session import Candidate, Deadline, Session, Task
from measurements.peers.ways.bare import BareMps, BareSlices
from measurements.peers.ways.dra import NvidiaDra
from measurements.peers.ways.gpushare import Gpushare, GpushareAllThreads, GpushareByClaims
from measurements.peers.ways.hami import HamiCore
from measurements.peers.ways.nvidia import NvidiaPlugin
from measurements.peers.ways.way import CLIENTS, Gpus, Way
from tests.cluster.harness import Harness

WAYS = tuple(table.TITLES)
CALL_SECONDS = 520
OF_A_BURST = ("gpushare", "gpushare-claims", "nvidia-mps", "nvidia-time-slicing")
"""The ways that count places on each GPU."""
BURST_SECONDS, BURST_MOST_SECONDS = 150, 600
"""Times of a burst on two cores."""


def main(argv: Sequence[str], description: str) -> int:
    return _steps(description).run(argv)


def _steps(description: str) -> Steps:
    steps = Steps("measurements/peers/run", description)
    made = steps.add("build", _build, "build a peer from a checkout of its sources, and pack it")
    made.add_argument("peer", choices=build.PEERS)
    made.add_argument("source", type=Path)
    made.add_argument("out", type=Path)
    made.add_argument("--cuda", type=Path, help="a folder with CUDA's headers below `include`; HAMi-core needs them")
    measured = steps.add("measure", _measure, "install and measure ways, one after the other")
    measured.add_argument("way", nargs="+", choices=WAYS, metavar=f"WAY ({', '.join(WAYS)})")
    measured.add_argument("--peers", type=Path, default=Path("build/peers"), help="what `build` wrote to (%(default)s)")
    measured.add_argument("--cases", nargs="+", choices=CASES, default=tuple(CASES), help="default: all")
    measured.add_argument("--again", action="store_true", help="also the cases that have been measured")
    measured.add_argument("--seconds", type=float, default=CALL_SECONDS, help="for all of it (%(default)s)")
    measured.add_argument("--out", type=Path, help=f"for the results ({page.PUBLISHED}, or build/ in a rehearsal)")
    bursts = steps.add("burst", _burst, "more pods at once than places, on all GPUs of the node; the ways alternate")
    bursts.add_argument("way", nargs="+", choices=OF_A_BURST, metavar=f"WAY ({', '.join(OF_A_BURST)})")
    bursts.add_argument("--peers", type=Path, default=Path("build/peers"), help="what `build` wrote to (%(default)s)")
    bursts.add_argument("--repeats", type=int, default=3, help="of each way (%(default)s)")
    bursts.add_argument("--seconds", type=float, default=3600, help="for all of it (%(default)s)")
    bursts.add_argument("--out", type=Path, default=page.BURSTS, help="for the results (%(default)s)")
    drawn = steps.add("page", _page, "write the measured tables into the docs")
    drawn.add_argument("--results", type=Path, default=page.PUBLISHED, help="where the results are (%(default)s)")
    return steps


def _build(arguments: argparse.Namespace) -> bool:
    packed = build.build(arguments.peer, arguments.source, arguments.out, arguments.cuda)
    print(f"{packed}: {packed.stat().st_size >> 20} MiB")
    return True


def _page(arguments: argparse.Namespace) -> bool:
    page.write(page.read(arguments.results), page.read(page.BURSTS, simulated_too=True))
    return True


def _measure(arguments: argparse.Namespace) -> bool:
    """Cases that have been measured are left out, so the same command goes on where it was cut off.

    The ways share the time; their order is that of the arguments.
    """
    deadline = Deadline(arguments.seconds)
    stack, record = bring.running()
    known = SIMULATED_RESULTS if record.simulated else page.PUBLISHED
    out = arguments.out or known
    out.mkdir(parents=True, exist_ok=True)
    harness, log = Harness(stack), out / "peers.log"
    log.unlink(missing_ok=True)
    session = Session(harness, _ways(harness, arguments.peers, _gpus(record, CLIENTS)), deadline, log)
    tasks = []
    for name in arguments.way:
        results = Results(name, record, out, known)
        cases = [case for case in arguments.cases if arguments.again or not results.is_done(case)]
        if left_out := [case for case in arguments.cases if case not in cases]:
            print(f"{name}: measured before: {', '.join(left_out)}")
        if cases:
            tasks.append(Task(name, cases, results))
    return session.measure(tasks)


def _burst(arguments: argparse.Namespace) -> bool:
    """Repeats that have been measured are left out. Placement needs no GPU: also simulated ones give results."""
    stack, record = bring.running()
    harness, out = Harness(stack), arguments.out
    gpus = _gpus(record, burst.PER_GPU)
    out.mkdir(parents=True, exist_ok=True)
    case = Case(partial(burst.measure, gpus=gpus), BURST_SECONDS, BURST_MOST_SECONDS)
    cases = {f"{CASE}{number + 1}": case for number in range(arguments.repeats)}
    ways = _ways(harness, arguments.peers, gpus)
    session = Session(harness, ways, Deadline(arguments.seconds), WORK / "burst.log", cases)
    results = {name: Results(name, record, out, out, WORK / "burst") for name in arguments.way}
    todo = ((name, way, kept) for name in cases for way, kept in results.items())
    return session.measure([Task(way, [name], kept) for name, way, kept in todo if not kept.is_done(name)])


def _gpus(record: bring.Record, clients: int) -> Gpus:
    return Gpus(int(record.truth["gpus"]), int(record.truth["memory_mib"]), clients)


def _ways(harness: Harness, peers: Path, gpus: Gpus) -> Mapping[str, Candidate]:
    def plugin(sharing: str) -> Way:
        return NvidiaPlugin(harness, build.unpacked(build.PLUGIN, peers), sharing, gpus)

    def dra() -> Way:
        return NvidiaDra(harness, build.unpacked(build.DRA, peers), gpus.memory_mib)

    def hami() -> Way:
        return HamiCore(harness, build.unpacked(build.HAMI, peers), gpus.memory_mib)

    return {
        "gpushare": Candidate(partial(Gpushare, harness, gpus), 30),
        "gpushare-all-threads": Candidate(partial(GpushareAllThreads, harness, gpus), 30),
        "gpushare-claims": Candidate(partial(GpushareByClaims, harness, gpus), 30),
        "nvidia-mps": Candidate(partial(plugin, "mps"), 35),
        "nvidia-dra": Candidate(dra, 35),
        "nvidia-time-slicing": Candidate(partial(plugin, "timeSlicing"), 35),
        "bare-mps": Candidate(partial(BareMps, harness), 5),
        "bare-slices": Candidate(partial(BareSlices, harness), 5),
        "hami-core": Candidate(hami, 5),
    }
