"""One installation, all scenes, and an end at each point of each of them: what is different afterwards."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localcluster.kubectl import CommandError
from tests.cluster.cycles.oracle import Oracle, leftovers
from tests.cluster.cycles.perform import Performer
from tests.cluster.cycles.steps import Step
from tests.cluster.cycles.world import Kind, World
from tests.cluster.harness import Harness, wait_until
from tests.faults.points import Order, Point, Recorder
from tests.faults.scenes import SCENES

GONE_SECONDS = 90
RETRY_SECONDS = 30.0
WEBHOOK = "failed calling webhook"
SAME, ENDED, NOT_REACHED = "same", "clients of the GPU ended", "not reached"
LAWFUL = (SAME, ENDED, NOT_REACHED)


@dataclass(frozen=True, slots=True)
class Result:
    """Of one order. `outcome`: one of LAWFUL, or what is different, in words.

    `beside`: the number of orders that were carried out in the same run. `retried`: steps that the API server refused
    since the webhook was away, and that were done again. `seconds`: of the run.
    """

    scene: str
    point: str
    when: str
    outcome: str
    beside: int
    retried: tuple[str, ...]
    seconds: float


class Life:
    """One scene on a cluster without shares, and everything deleted again."""

    def __init__(self, harness: Harness, recorder: Recorder, orders: Sequence[Order] = ()) -> None:
        self._harness, self._recorder, self._orders = harness, recorder, orders
        self._roles = {it.point.role for it in orders}
        self.retried: list[str] = []
        self.gpu_lost = False

    def live(self, scene: str) -> Counter[Point]:
        """The points that were passed. Raises AssertionError if anything is not as it would have been."""
        harness, world = self._harness, World()
        self._wait_gone("the node is free of earlier shares")
        self._recorder.clear()
        self._recorder.order(self._orders)
        with harness.namespace("faults") as tenant:
            performer, oracle = Performer(harness, tenant, world), Oracle(harness, tenant, world)
            with oracle.sampling(), self._all_deleted(tenant.delete_pods):
                for step in SCENES[scene]:
                    self._do(performer, step)
                    self._hear(world)
                    oracle.check()
                oracle.settle(after_operator="operator" in self._roles)
                self._fresh_clients(performer)
                oracle.check()
        self._wait_gone("nothing is left behind")
        return self._recorder.passed()

    def _wait_gone(self, what: str) -> None:
        wait_until(what, lambda: not leftovers(self._harness), GONE_SECONDS, lambda: leftovers(self._harness))

    @contextmanager
    def _all_deleted(self, delete_pods: Callable[[], None]) -> Iterator[None]:
        try:
            yield
        finally:
            delete_pods()
            self._harness.kubectl.delete("gpushares", "--all", seconds=GONE_SECONDS)

    def _do(self, performer: Performer, step: Step) -> None:
        """A user's controller tries again what the API server refused because it could not reach the webhook."""
        if "agent" in self._roles:
            performer.disturbed()
        if "mps-supervisor" in self._roles or "mps-broker" in self._roles:
            for share in performer.world.shares.values():
                share.unsure = True
        end = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                performer.do(step)
                return
            except CommandError as error:
                if WEBHOOK not in str(error) or time.monotonic() > end:
                    raise
                self.retried.append(step.verb)
                time.sleep(1)

    def _hear(self, world: World) -> None:
        """The world is told who died: what that may end is written there."""
        died = self._recorder.died()
        if "agent" in died:
            world.agent_away = True
        if "mps-supervisor" in died and not self.gpu_lost:
            self.gpu_lost = True
            for share in world.usable():
                world.gpu_failed(share.name)

    def _fresh_clients(self, performer: Performer) -> None:
        """Whoever comes next finds a GPU that computes."""
        world = performer.world
        for share in [it for it in world.usable() if world.free_slots(it)]:
            self._do(performer, Step("start", share.name, kind=Kind.WORKER, count=1))


@dataclass(frozen=True)
class Campaign:
    harness: Harness
    recorder: Recorder
    results: Path
    """A line of JSON for each result, and for each scene without an end: a campaign goes on where it stopped."""

    def points(self, scene: str) -> list[Point]:
        """Those that the scene passes when nobody dies."""
        for line in self._lines():
            if line.get("undisturbed") == scene:
                return [Point(it["text"], it["partly"]) for it in line["points"]]
        began = time.monotonic()
        passed = Life(self.harness, self.recorder).live(scene)
        points = [asdict(it) | {"passages": count} for it, count in sorted(passed.items())]
        self._add({"undisturbed": scene, "points": points, "seconds": round(time.monotonic() - began, 1)})
        return sorted(passed)

    def run(self, scene: str, orders: Sequence[Order]) -> list[Result]:
        """Of those orders that were carried out; of a single one in any case. A group with a difference has none."""
        life, began = Life(self.harness, self.recorder, orders), time.monotonic()
        try:
            life.live(scene)
            outcome = ENDED if life.gpu_lost else SAME
        except (AssertionError, CommandError) as error:
            outcome = str(error)[:2000]
        done, seconds = self.recorder.carried_out(), round(time.monotonic() - began, 1)
        if outcome not in LAWFUL and len(orders) > 1:
            return []
        results = [
            Result(
                scene, it.point.text, it.when, outcome if it in done else NOT_REACHED, len(done) - 1,
                tuple(life.retried), seconds,
            )
            for it in orders if it in done or len(orders) == 1
        ]  # fmt: skip
        for result in results:
            self._add(asdict(result))
        return results

    def done(self) -> set[tuple[str, str]]:
        """(point, when) of each result."""
        return {(it["point"], it["when"]) for it in self._lines() if "outcome" in it}

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.results.read_text().splitlines()] if self.results.exists() else []

    def _add(self, line: dict[str, Any]) -> None:
        self.results.parent.mkdir(parents=True, exist_ok=True)
        with self.results.open("a") as file:
            file.write(json.dumps(line) + "\n")
