"""One installation, all scenes, and an end at each point of each of them: what is different afterwards."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from localcluster.kubectl import CommandError
from tests.cluster.cycles.oracle import Oracle
from tests.cluster.cycles.steps import Step
from tests.cluster.cycles.world import Client, Kind, World
from tests.cluster.harness import Harness, wait_until
from tests.faults.acts import Actor, left, mend
from tests.faults.groups import again
from tests.faults.haste import leases_cut_short
from tests.faults.points import Order, Point, Recorder
from tests.faults.record import ENDED, NOT_REACHED, SAME, Record, Result, today
from tests.faults.scenes import SCENES

GONE_SECONDS = 90
RETRY_SECONDS = 30.0
FATE_SECONDS = 30
KERNEL_SECONDS = 3.0
"""A victim whose context was lost has told so by then: its kernels take 200 ms."""
WEBHOOK = "failed calling webhook"


class Life:
    """One scene on a cluster without shares, and everything deleted again."""

    def __init__(self, harness: Harness, recorder: Recorder, orders: Sequence[Order] = ()) -> None:
        self._harness, self._recorder, self._orders = harness, recorder, orders
        self._roles = {order.point.role for order in orders}
        self.retried: list[str] = []
        self.phases: Counter[str] = Counter()
        """The seconds by phase."""
        self._supervisors_died = 0
        self._doomed: dict[str, Client] = {}
        """Clients of GPUs whose MPS supervisor has ended since the step began in which they started."""

    @property
    def gpu_lost(self) -> bool:
        """Tells whether clients were lawfully ended by the end of their MPS supervisor."""
        return bool(self._supervisors_died)

    def live(self, scene: str) -> Counter[Point]:
        """The points that were passed. Raises AssertionError if anything is not as it would have been."""
        self._wait_gone("the node is free of earlier shares")
        self._recorder.clear()
        self._recorder.order(self._orders)
        with leases_cut_short(self._harness.system, self._recorder):
            self._play(scene)
            self._wait_gone("nothing is left behind")
        return self._recorder.passed()

    def _play(self, scene: str) -> None:
        harness, world = self._harness, World()
        with harness.namespace("faults") as tenant:
            performer, oracle = Actor(harness, tenant, world), Oracle(harness, tenant, world)
            with oracle.sampling(), self._all_deleted(tenant.delete_pods):
                for step in SCENES[scene]:
                    with self._phase(step.verb):
                        self._do(performer, step)
                    self.hear(world)
                    self.judge(world, oracle.check)
                with self._phase("settle"):
                    self.judge(world, lambda: self._settle(performer, oracle))
                with self._phase("fresh clients"):
                    self._fresh_clients(performer)
                self.judge(world, oracle.check)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] += round(time.monotonic() - began)

    def _wait_gone(self, what: str) -> None:
        with self._phase("nothing left"):
            wait_until(what, lambda: not left(self._harness), GONE_SECONDS, lambda: left(self._harness))

    @contextmanager
    def _all_deleted(self, delete_pods: Callable[[], None]) -> Iterator[None]:
        try:
            yield
        finally:
            with self._phase("delete all"):
                delete_pods()
                self._harness.kubectl.delete("gpushares", "--all", seconds=GONE_SECONDS)

    def _do(self, performer: Actor, step: Step) -> None:
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

    def judge(self, world: World, judged: Callable[[], object]) -> None:
        """Judges, and again if an MPS supervisor ended meanwhile: whom that harmed was not known yet."""
        while True:
            try:
                judged()
                return
            except AssertionError:
                if not self.hear(world):
                    raise

    def _settle(self, performer: Actor, oracle: Oracle) -> None:
        self.spare_the_living(performer)
        oracle.settle(after_operator="operator" in self._roles)

    def hear(self, world: World) -> bool:
        """Writes into the world what the ends of our parts may end. Returns whether an MPS supervisor ended since."""
        died = self._recorder.died()
        if "agent" in died:
            world.agent_away = True
        if died["mps-supervisor"] == self._supervisors_died:
            return False
        self._supervisors_died = died["mps-supervisor"]
        for share in [candidate for candidate in world.shares.values() if candidate.has_gpu]:
            self._doomed |= {client.name: client for client in world.of(share.name)}
            world.gpu_failed(share.name)
        return True

    def spare_the_living(self, performer: Actor) -> None:
        """Who began after the supervisor had ended, in the same step, has lost nothing: it goes on, or has to end."""
        world, tenant = performer.world, performer.tenant
        for name in sorted(world.doomed & self._doomed.keys()):
            client, checks, seen = self._doomed[name], tenant.checks(name), time.monotonic()

            def fate(name: str = name, client: Client = client, checks: int = checks, seen: float = seen) -> str:
                if name not in [pod["metadata"]["name"] for pod in tenant.running()]:
                    return "ends"
                if client.kind is Kind.VICTIM:  # it checks nothing, but tells of its error
                    late = time.monotonic() > seen + KERNEL_SECONDS
                    return "ends" if tenant.events_of(name, "gpu-error") else "lives" if late else ""
                return "lives" if tenant.checks(name) > checks else ""

            how = wait_until(f"{name} goes on or ends", fate, FATE_SECONDS, lambda name=name: tenant.explain(name))
            if how == "lives":
                world.doomed.discard(name)
                world.clients[name] = client

    def _fresh_clients(self, performer: Actor) -> None:
        """Whoever comes next finds a GPU that computes."""
        world = performer.world
        for share in [candidate for candidate in world.usable() if world.free_slots(candidate)]:
            self._do(performer, Step("start", share.name, kind=Kind.WORKER, count=1))


@dataclass(frozen=True)
class Campaign:
    harness: Harness
    recorder: Recorder
    record: Record

    def points(self, scene: str) -> list[Point]:
        """Those that the scene passes when nobody dies."""
        code = self.harness.stack.operator_image.rpartition(":")[2]
        if not self.record.points(scene, code):
            began = time.monotonic()
            try:
                passed = Life(self.harness, self.recorder).live(scene)
            except (AssertionError, CommandError):
                mend(self.harness)
                raise
            self.record.add_scene(scene, passed, round(time.monotonic() - began, 1), code)
        return self.record.points(scene, code)

    def run(self, scene: str, orders: Sequence[Order]) -> tuple[list[Result], list[list[Order]]]:
        """(what was recorded, the runs that this one leaves to do)."""
        life, began = Life(self.harness, self.recorder, orders), time.monotonic()
        different = ""
        try:
            life.live(scene)
        except (AssertionError, CommandError) as error:
            different = str(error)[:2000]
            mend(self.harness)
        done, seconds = self.recorder.carried_out(), round(time.monotonic() - began, 1)
        print(f"  {scene}: {len(done)} ends, {seconds:.0f} s: {_longest(life.phases)}", flush=True)
        left_to_do = again(orders, done, different=bool(different))
        if different and len(orders) > 1:
            print(f"  {len(done)} ends in one run: {different[:300]}", flush=True)
            return [], left_to_do
        outcome = different or (ENDED if life.gpu_lost else SAME)
        repeated = {order for run in left_to_do for order in run}
        results = [
            Result(
                scene, order.point.text, order.when, outcome if order in done or different else NOT_REACHED,
                len(done - {order}), tuple(life.retried), seconds, today(),
            )
            for order in orders if order not in repeated
        ]  # fmt: skip
        self.record.add(results)
        return results, left_to_do


def _longest(phases: Counter[str]) -> str:
    return ", ".join(f"{name} {seconds}" for name, seconds in phases.most_common(5))
