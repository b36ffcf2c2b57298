"""Cycles one after the other: a step, a look at everybody, and now and then a wait until all has settled."""

import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from localcluster.paths import REPOSITORY
from tests.cluster.cycles.oracle import Oracle
from tests.cluster.cycles.perform import Performer
from tests.cluster.cycles.steps import SETTLE_EVERY, WEIGHTS, choose
from tests.cluster.cycles.world import World

TRACES = REPOSITORY / "build" / "cycles"


class Trace:
    """What was done and when, one JSON object per line, in a file that outlasts the run."""

    def __init__(self, seed: int) -> None:
        TRACES.mkdir(parents=True, exist_ok=True)
        self.path = TRACES / f"seed-{seed}.jsonl"
        self.path.write_text("")
        self._began = time.monotonic()

    def __call__(self, **fields: Any) -> None:
        line = json.dumps({"at": round(time.monotonic() - self._began, 2)} | fields)
        with self.path.open("a") as file:
            file.write(line + "\n")


def live(
    goes_on: Callable[[int], bool],
    chance: random.Random,
    performer: Performer,
    oracle: Oracle,
    trace: Callable[..., None],
    weights: Mapping[str, float] = WEIGHTS,
) -> int:
    """Returns the number of cycles. Raises AssertionError where anything is not as the world says.

    `goes_on`: asked before each cycle, with its number from 1 on.
    """
    world: World = performer.world
    operator_killed, cycle, more = False, 0, goes_on(1)
    while more:
        cycle += 1
        step = choose(world, chance, weights)
        trace(cycle=cycle, **step.told())
        performer.do(step)
        oracle.check()
        operator_killed |= step.verb == "kill-operator"
        more = goes_on(cycle + 1)
        if cycle % SETTLE_EVERY == 0 or not more:
            took = oracle.settle(operator_killed)
            operator_killed = False
            trace(settled_after=round(took, 1), shares=sorted(world.shares), clients=sorted(world.clients))
    return cycle
