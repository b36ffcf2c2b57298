"""Random life and random accidents, against a model of who must survive what: see tests/cluster/cycles/world.py."""

import random
import secrets

import pytest

from tests.cluster.cycles.life import Trace, live
from tests.cluster.cycles.oracle import Oracle, leftovers
from tests.cluster.cycles.perform import Performer
from tests.cluster.cycles.world import World
from tests.cluster.harness import Harness, wait_until


@pytest.mark.long
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
                performer = Performer(harness, tenant, world)
                live(lambda cycle: cycle <= cycles, random.Random(seed), performer, oracle, trace)
            trace(done=True, samples=oracle.samples)
            assert oracle.samples > cycles, "the slots were not looked at often enough to say anything"
        except BaseException as error:
            trace(failed=str(error)[:4000])
            raise
        finally:
            tenant.delete_pods()
            harness.kubectl.delete("gpushares", "--all", seconds=90)
    wait_until("nothing is left behind", lambda: not leftovers(harness), 30, lambda: leftovers(harness))
