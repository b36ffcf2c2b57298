"""Which containers have a place, by the server's list and by who is on the way to a context."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpushare.mps.identity import Container, Identity
from gpushare.mps.queue.holders import SETTLED_SECONDS, UNUSED_SECONDS, PlaceHolders

APP, OTHER, THIRD = ("pod-1", "app"), ("pod-2", "app"), ("pod-3", "app")
PROCESS, SECOND = (7, 70), (8, 80)


class Scene:
    def __init__(self, limit: int = 1) -> None:
        self.processes = {APP: PROCESS, OTHER: (9, 90), THIRD: (10, 100)}
        self.now = 100.0
        self.dead: set[Identity] = set()
        self.holders = PlaceHolders(lambda: self.now, lambda process: process not in self.dead)
        self.holders.limit = limit

    def look(self, *listed: Container, adopt: bool = False, take_free: bool = True) -> set[Container]:
        processes = {self.processes[container]: container for container in listed}
        told = self.holders.listed(processes, lambda _: "ml", adopt=adopt, take_free=take_free)
        return set(told)

    def is_let_through(self, container: Container, process: Identity) -> None:
        self.holders.give(container, "ml", [process])
        self.holders.attaching(container, process)
        self.holders.attached(container, process)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_place_is_held_as_long_as_a_process_is_listed(scene: Scene) -> None:
    scene.is_let_through(APP, PROCESS)
    assert scene.holders.free == 0
    scene.now += 10 * UNUSED_SECONDS
    scene.look(APP)
    assert scene.holders.has(APP)
    scene.dead = {PROCESS}
    scene.look()
    assert scene.holders.free == 1


def test_a_list_without_a_process_that_lives_is_not_believed_at_once(scene: Scene) -> None:
    """Of a server that recovers, say; who computes would be without a place, and be ended."""
    scene.look(APP)
    for _ in range(3):
        scene.look()
        assert scene.holders.has(APP)
        scene.look(APP)
    scene.look()
    scene.look()
    assert not scene.holders.has(APP)


def test_a_place_that_was_given_waits_for_its_context_for_thirty_seconds(scene: Scene) -> None:
    scene.holders.give(APP, "ml", [PROCESS])
    scene.now += UNUSED_SECONDS - 1
    scene.look()
    assert scene.holders.has(APP)
    scene.now += 2
    scene.look()
    assert not scene.holders.has(APP)


def test_a_place_is_free_once_the_process_that_was_given_it_has_ended(scene: Scene) -> None:
    scene.holders.give(APP, "ml", [PROCESS, SECOND])
    scene.dead = {PROCESS}
    scene.look()
    assert scene.holders.has(APP)
    scene.dead = {PROCESS, SECOND}
    scene.look()
    assert not scene.holders.has(APP)


def test_an_attach_that_takes_its_time_keeps_the_place(scene: Scene) -> None:
    scene.holders.give(APP, "ml", [PROCESS])
    scene.holders.attaching(APP, PROCESS)
    scene.now += 100 * UNUSED_SECONDS
    scene.look()
    assert scene.holders.has(APP)
    scene.holders.failed(APP, PROCESS)
    scene.look()
    assert not scene.holders.has(APP)


def test_an_attach_that_fails_takes_no_place_from_one_that_did_not(scene: Scene) -> None:
    """Two threads of a process, say; the list does not show it yet."""
    scene.is_let_through(APP, PROCESS)
    scene.holders.attaching(APP, PROCESS)
    scene.holders.failed(APP, PROCESS)
    scene.look()
    assert scene.holders.has(APP)


def test_a_list_that_is_seconds_old_takes_no_place_from_a_new_context(scene: Scene) -> None:
    """It still shows the context of before, then neither, then the new one."""
    scene.is_let_through(APP, PROCESS)
    scene.look(APP)
    scene.now += SETTLED_SECONDS - 1
    scene.look()
    assert scene.holders.has(APP)


def test_a_context_that_settled_gives_its_place_back_at_once(scene: Scene) -> None:
    scene.is_let_through(APP, PROCESS)
    scene.now += SETTLED_SECONDS
    scene.look(APP)
    scene.look()
    scene.look()
    assert not scene.holders.has(APP)


def test_who_is_listed_without_a_place_takes_one_that_is_free(scene: Scene) -> None:
    assert scene.look(APP) == scene.look(APP) == set()
    assert scene.holders.has(APP)


def test_who_is_listed_without_a_place_in_two_looks_is_told(scene: Scene) -> None:
    scene.is_let_through(APP, PROCESS)
    assert scene.look(APP, OTHER) == set()
    assert scene.look(APP, OTHER) == {OTHER}
    assert scene.look(APP) == scene.look(APP, OTHER) == set(), "another look begins anew"


def test_who_is_listed_without_a_place_jumps_no_queue(scene: Scene) -> None:
    scene.look(APP, take_free=False)
    assert scene.look(APP, take_free=False) == {APP}
    assert scene.holders.free == 1


def test_who_computed_before_places_were_counted_has_one(scene: Scene) -> None:
    scene.look(APP, OTHER, adopt=True)
    assert scene.holders.has(APP)
    assert scene.holders.has(OTHER)
    assert scene.holders.free == 0
    assert scene.look(APP, OTHER) == scene.look(APP, OTHER) == set()


def test_fewer_places_than_are_held_end_nobody(scene: Scene) -> None:
    scene.look(APP, OTHER, THIRD, adopt=True)
    scene.holders.limit = 2
    assert scene.look(APP, OTHER, THIRD) == scene.look(APP, OTHER, THIRD) == set()
    scene.dead = {scene.processes[OTHER], scene.processes[THIRD]}
    scene.look(APP)
    assert scene.holders.free == 1


def test_a_place_of_an_earlier_broker_is_kept_until_the_list_shows_it(scene: Scene) -> None:
    scene.holders.restore(APP, "ml", 50.0, seconds=10)
    assert scene.holders.since() == {APP: 50.0}
    scene.look()
    assert scene.holders.has(APP)
    scene.now += 11
    scene.look()
    assert not scene.holders.has(APP)


CONTAINERS = st.sampled_from([APP, OTHER, THIRD])


class AnyOrder(RuleBasedStateMachine):
    """Honest containers: a place is given where one is free, then comes the context, then its end."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(limit=2)
        self.computing: set[Container] = set()
        self.process: dict[Container, Identity] = {}
        self.started = 0

    @rule(container=CONTAINERS)
    def begin(self, container: Container) -> None:
        holders = self.scene.holders
        if container in self.computing or not (holders.has(container) or holders.free):
            return
        self.started += 1
        self.process[container] = self.scene.processes[container] = (self.started, self.started)
        self.scene.is_let_through(container, self.process[container])
        self.computing.add(container)

    @rule(container=CONTAINERS)
    def end(self, container: Container) -> None:
        if container in self.computing:
            self.computing.remove(container)
            self.scene.dead.add(self.process[container])

    @rule(seconds=st.sampled_from([0.5, 2.0, SETTLED_SECONDS, UNUSED_SECONDS]))
    def time_goes_by(self, seconds: float) -> None:
        self.scene.now += seconds
        assert not self.scene.look(*self.computing), "an honest container is told"

    @invariant()
    def whoever_computes_has_a_place_and_no_more_compute_than_there_are(self) -> None:
        assert all(self.scene.holders.has(container) for container in self.computing)
        assert len(self.computing) <= 2

    def teardown(self) -> None:
        self.scene.dead |= set(self.process.values())
        self.scene.look()
        assert self.scene.holders.free == 2, "a place got lost"


test_any_order_of_honest_containers = AnyOrder.TestCase
