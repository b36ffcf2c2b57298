"""Who has to give its place back: idle long enough, told a minute before, and never more than wait."""

from collections.abc import Iterable
from dataclasses import replace
from signal import Signals
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.observe.idle import IdleCourse, IdleStep, follow_activity, idle_containers, idle_steps
from gpushare.agent.observe.usage import Reading, Usage
from gpushare.api.client_class import ClientClass
from gpushare.grant.model import Grant
from gpushare.mps.wire import BrokerState, ClientActivity
from tests.unit.agent.observed_pods import UUID, container_id, process, uid, usage

AFTER = 600.0
START = 10_000.0


def client(number: int, client_class: ClientClass = ClientClass.NORMAL, **fields: Any) -> Usage:
    values = {"pod_uid": uid(number), "pod": f"pod-{number}", "container_id": container_id(number)}
    grant = Grant("a", 25, 8192, 1, client_class=client_class)
    listed = fields.pop("processes", (process(number, 500),))
    return usage(*listed, **values | {"grant": grant} | fields)


def page(number: int, last: float | None, active: float = 5.0, **fields: Any) -> ClientActivity:
    return ClientActivity(
        pid=number,
        started=100,
        pod_uid=uid(number),
        container="app",
        client_class="Normal",
        launches=1,
        last_launch=last,
        active_seconds=active,
        **fields,
    )


class Gpu:
    """One GPU with readings two seconds apart."""

    def __init__(self) -> None:
        self.now, self.course = START, IdleCourse()

    def read(
        self, *usages: Usage, pages: Iterable[ClientActivity] = (), wanted: int = 1, busy: int | None = 50
    ) -> list[IdleStep]:
        self.now += 2
        reading = Reading(UUID, "a", self.now, 80_000, usages)
        broker = BrokerState(uuid=UUID, heartbeat=self.now, listening=True, activity=list(pages))
        clients = {(item.pid, item.started) for listed in usages for item in listed.processes}
        course = follow_activity(self.course, broker, busy, clients, self.now)
        self.course, steps = idle_steps(course, reading, idle_containers(course, reading, pages), wanted, AFTER)
        return steps

    def until(self, seconds: float, *usages: Usage, **reading: Any) -> list[tuple[float, IdleStep]]:
        """The steps of so many seconds, with the time since the start."""
        steps = []
        while self.now < START + seconds:
            made = self.read(*usages, **reading)
            steps += [(self.now - START, step) for step in made]
        return steps


def test_an_idle_client_is_told_a_minute_before_it_is_ended() -> None:
    steps = Gpu().until(AFTER + 4, client(1), pages=[page(1, START - 50)])
    assert [(step.usage.pod, bool(step.processes)) for _, step in steps[:2]] == [("pod-1", False), ("pod-1", True)]
    (told, _), (ended, end) = steps[:2]
    assert told == pytest.approx(AFTER - 60, abs=4)
    assert ended == pytest.approx(AFTER, abs=4)
    assert [item.pid for item in end.processes] == [1]


@pytest.mark.parametrize(
    ("sentence", "listed", "reading"),
    [
        ("nobody waits", client(1), {"pages": [page(1, START - AFTER)], "wanted": 0}),
        ("it has just launched", client(1), {"pages": [page(1, START + AFTER)]}),
        ("its pages are not credible", client(1), {"pages": [page(1, START, fault="no")]}),
        ("it has no page, and the GPU is busy", client(1), {}),
        ("it has no page, and the GPU does not say", client(1), {"busy": None}),
        ("its grant is only assumed", client(1, by_default=True), {"pages": [page(1, START)]}),
        ("its container is not known", client(1, container=""), {"pages": [page(1, START)]}),
        ("one of its processes is not idle", client(1, processes=(process(1, 500), process(2, 500))),
         {"pages": [page(1, START), page(2, START + AFTER)]}),
    ],
)  # fmt: skip
def test_nobody_is_told_or_ended_where(sentence: str, listed: Usage, reading: dict[str, Any]) -> None:
    assert Gpu().until(AFTER + 10, listed, **reading) == [], sentence


def test_work_that_goes_on_without_a_launch_is_no_idleness() -> None:
    gpu = Gpu()
    for second in range(0, int(AFTER) + 10, 2):
        assert gpu.read(client(1), pages=[page(1, START, active=float(second))]) == []


def test_a_client_without_a_page_goes_when_the_whole_gpu_was_idle() -> None:
    gpu = Gpu()
    assert [bool(step.processes) for _, step in gpu.until(AFTER + 4, client(1), busy=0)][:2] == [False, True]
    busy = Gpu()
    assert busy.until(AFTER - 100, client(1), busy=0) == []
    busy.read(client(1), busy=1)
    assert busy.until(AFTER + 100, client(1), busy=0) == []


def test_a_launch_withdraws_the_notice() -> None:
    gpu = Gpu()
    assert len(gpu.until(AFTER - 30, client(1), pages=[page(1, START - 50)])) == 1
    assert gpu.until(AFTER + 300, client(1), pages=[page(1, START + AFTER - 30)]) == []


def test_no_more_are_ended_than_wait_and_protected_ones_last() -> None:
    clients = [client(1, ClientClass.PROTECTED), client(2), client(3)]
    pages = [page(1, START), page(2, START + 100), page(3, START + 50)]
    gpu = Gpu()
    steps = gpu.until(AFTER + 60, *clients, pages=pages, wanted=1)
    assert [step.usage.pod for _, step in steps if not step.processes] == ["pod-1", "pod-3"]
    assert {step.usage.pod for _, step in steps if step.processes} == {"pod-3"}


def test_what_keeps_its_memory_after_its_end_gets_signals() -> None:
    gpu = Gpu()
    gpu.until(AFTER + 2, client(1), pages=[page(1, START - 50)])
    ended = client(1, processes=(replace(process(1, 500), terminated=True),))
    steps = gpu.until(AFTER + 60, ended)
    signals = [step.signal for _, step in steps]
    assert signals[0] is Signals.SIGTERM
    assert Signals.SIGKILL in signals
    assert None not in signals


def test_a_new_process_beside_the_ended_one_keeps_signals_away() -> None:
    gpu = Gpu()
    gpu.until(AFTER + 2, client(1), pages=[page(1, START - 50)])
    ended = client(1, processes=(replace(process(1, 500), terminated=True), process(9, 500)))
    assert gpu.until(AFTER + 60, ended, pages=[page(9, START + AFTER)], wanted=0) == []


@given(st.lists(st.floats(START - 2000, START + 2000), min_size=1, max_size=6), st.integers(0, 4))
def test_whoever_is_idle_nobody_is_ended_without_notice(launches: list[float], wanted: int) -> None:
    gpu = Gpu()
    clients = [client(number) for number, _ in enumerate(launches, 1)]
    pages = [page(number, last) for number, last in enumerate(launches, 1)]
    told: dict[str, float] = {}
    ended: set[str] = set()
    for at, step in gpu.until(800, *clients, pages=pages, wanted=wanted):
        if step.processes:
            assert at - told[step.usage.pod] >= 60
            ended.add(step.usage.pod)
        else:
            told[step.usage.pod] = at
    assert len(ended) <= wanted
