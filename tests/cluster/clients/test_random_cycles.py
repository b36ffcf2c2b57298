"""Random life and random accidents, against a model of who must survive what: see tests/cluster/cycles/world.py."""

import json
import random
import secrets
import time
from collections.abc import Callable
from typing import Any

import pytest

from localcluster.paths import REPOSITORY
from tests.cluster.cycles.oracle import Oracle, leftovers
from tests.cluster.cycles.perform import Performer
from tests.cluster.cycles.steps import SETTLE_EVERY, choose
from tests.cluster.cycles.world import World
from tests.cluster.harness import Harness, wait_until

TRACES = REPOSITORY / "build" / "cycles"


class Trace:
    """What was done and when, one JSON object per line, in a file that outlasts the test."""

    def __init__(self, seed: int) -> None:
        TRACES.mkdir(parents=True, exist_ok=True)
        self.path = TRACES / f"seed-{seed}.jsonl"
        self.path.write_text("")
        self._began = time.monotonic()

    def __call__(self, **fields: Any) -> None:
        line = json.dumps({"at": round(time.monotonic() - self._began, 2)} | fields)
        with self.path.open("a") as file:
            file.write(line + "\n")


@pytest.mark.takes(240)
def test_whatever_happens_only_those_end_who_have_to(harness: Harness, request: pytest.FixtureRequest) -> None:
    cycles = int(request.config.getoption("--cycles"))
    given = request.config.getoption("--seed")
    seed = int(given) if given is not None else secrets.randbelow(1_000_000)
    trace = Trace(seed)
    print(f"{cycles} cycles, trace in {trace.path}; again: --cycles={cycles} --seed={seed}")
    world = World()
    wait_until("the node is free of earlier shares", lambda: not leftovers(harness), 60, lambda: leftovers(harness))
    with harness.namespace("cycles") as tenant:
        oracle = Oracle(harness, tenant, world)
        try:
            with oracle.sampling():
                run(cycles, random.Random(seed), world, Performer(harness, tenant, world), oracle, trace)
            trace(done=True, samples=oracle.samples)
            assert oracle.samples > cycles, "the slots were not looked at often enough to say anything"
        except BaseException as error:
            trace(failed=str(error)[:4000])
            raise
        finally:
            tenant.delete_pods()
            harness.kubectl.delete("gpushares", "--all", seconds=90)
    wait_until("nothing is left behind", lambda: not leftovers(harness), 30, lambda: leftovers(harness))


def run(
    cycles: int, chance: random.Random, world: World, performer: Performer, oracle: Oracle, trace: Callable[..., None]
) -> None:
    operator_killed = False
    for cycle in range(1, cycles + 1):
        step = choose(world, chance)
        trace(cycle=cycle, **step.told())
        performer.do(step)
        oracle.check()
        operator_killed |= step.verb == "kill-operator"
        if cycle % SETTLE_EVERY == 0 or cycle == cycles:
            took = oracle.settle(operator_killed)
            operator_killed = False
            trace(settled_after=round(took, 1), shares=sorted(world.shares), clients=sorted(world.clients))
