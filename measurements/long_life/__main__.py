"""`make long-life`: random cycles for hours, and what each part of gpushare uses meanwhile.

A long life has stretches that continue each other: each one adds what it measured to
measurements/results/faults/long-life.json, from which its page and picture are made anew. With --keep-cluster the next
one goes on with the same processes. At SIGINT or SIGTERM a stretch ends early, with what it measured.
"""

import argparse
import os
import platform
import random
import secrets
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localcluster.cluster import cluster, processes
from localcluster.kubectl import CommandError
from localcluster.paths import REPOSITORY
from localcluster.stack import embedded, install
from measurements.dashboard.report import commit
from measurements.long_life import publish
from measurements.long_life.minutes import Minutes
from measurements.long_life.record import Record, Stretch
from measurements.long_life.samples import Sample, Sampler
from tests.cluster.cycles.life import Trace, live
from tests.cluster.cycles.oracle import Oracle, leftovers
from tests.cluster.cycles.perform import Performer
from tests.cluster.cycles.steps import WEIGHTS
from tests.cluster.cycles.world import World
from tests.cluster.harness import Harness, wait_until

CLUSTER = "long-life"
DIRECTORY = REPOSITORY / "build" / "long-life"
OURS_KILLED = ("kill-agent", "kill-operator")
"""Steps that are left out: what leaks is seen in a process that lives. The campaign of accidents does these."""
GONE_SECONDS = 90


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m measurements.long_life", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this stretch (default: 60)")
    parser.add_argument("--seed", type=int, default=None, help="of the cycles (default: a new one)")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds after each step: hours of life on a machine with other work"
    )
    parser.add_argument("--cluster", default=CLUSTER, help=f"its name (default: {CLUSTER})")
    parser.add_argument("--keep-cluster", action="store_true", help="leave it up; the next stretch goes on with it")
    options = parser.parse_args()
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    try:
        harness = Harness(embedded(options.cluster))
        install(harness.stack)
        broke_off = _live_on(harness, options.minutes * 60, seed, over, options.pause)
    finally:
        if not options.keep_cluster:
            cluster.down(options.cluster)
    publish.main()
    return int(bool(broke_off))


def _live_on(harness: Harness, seconds: float, seed: int, over: threading.Event, pause: float) -> str:
    """Lives for that long, and adds it to the record, also where it broke off; returns why, or nothing.

    `pause`: seconds after each step.
    """
    samples, trace, steps = DIRECTORY / f"seed-{seed}.jsonl", Trace(seed), Counter[str]()
    samples.write_text("")
    print(f"seed {seed}; samples in {samples}, what was done in {trace.path}", flush=True)

    def traced(**fields: Any) -> None:
        steps[fields.get("verb", "")] += 1
        trace(**fields)

    def goes_on(cycle: int) -> bool:
        if cycle > 1:
            over.wait(pause)
        return time.monotonic() < began + seconds and not over.is_set()

    began = time.monotonic()
    broke_off = ""
    try:
        _live(harness, samples, goes_on, seed, traced)
    except (AssertionError, CommandError) as error:
        broke_off = str(error)[:2000]
        trace(failed=broke_off)
        harness.dump(DIRECTORY / f"seed-{seed}-dump")
        print(f"broke off: {broke_off}", flush=True)
    steps.pop("", None)
    first = str(processes.init(harness.layout))
    name = f"{harness.stack.embedded}-{first}-{_started(first)}"
    minutes = Minutes.of([Sample.of(line) for line in samples.read_text().splitlines()], name)
    stretch = Stretch(
        time.strftime("%Y-%m-%d", time.gmtime()), round((time.monotonic() - began) / 60), steps.total(), seed, commit(),
        name, platform.release(), os.cpu_count() or 0, dict(sorted(steps.items())), broke_off,
    )  # fmt: skip
    Record().add(stretch, minutes)
    return broke_off


def _started(pid: str) -> str:
    """A time in clock ticks since the machine booted: with the PID, a name of the cluster."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _live(
    harness: Harness, samples: Path, goes_on: Callable[[int], bool], seed: int, traced: Callable[..., None]
) -> None:
    world = World()
    weights = {verb: weight for verb, weight in WEIGHTS.items() if verb not in OURS_KILLED}
    wait_until("the node is free of earlier shares", lambda: not leftovers(harness), GONE_SECONDS)
    sampler = Sampler(harness, samples, lambda: (len(world.clients), len(world.shares)))
    with harness.namespace("life") as tenant, sampler.running():
        performer, oracle = Performer(harness, tenant, world), Oracle(harness, tenant, world)
        try:
            with oracle.sampling():
                live(goes_on, random.Random(seed), performer, oracle, traced, weights)
        finally:
            tenant.delete_pods()
            harness.kubectl.delete("gpushares", "--all", seconds=GONE_SECONDS)
            wait_until("nothing is left behind", lambda: not leftovers(harness), GONE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
