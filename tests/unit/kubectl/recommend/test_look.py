"""A watch of a minute, with a clock that a test moves: agents that answer, and agents that do not."""

from concurrent.futures import Future
from typing import Any

import pytest

from gpushare.kubectl.cluster import Cluster, UnreachableError
from gpushare.kubectl.recommend.look import watch_shares
from gpushare.kubectl.recommend.queries import KnownGpu
from gpushare.kubectl.rules.recommend.rules import recommend
from gpushare.kubectl.rules.recommend.sureness import Sureness
from tests.unit.clock import Clock
from tests.unit.kubectl.recommend.test_watch import served
from tests.unit.kubectl.rules.recommend.made_up import share

GPUS = {"GPU-0": KnownGpu(81_559, 48, "team")}


class MovedClock(Clock):
    """Moves by being slept on."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class TwoAgents(Cluster):
    """The agent of node n1 serves each text in turn, the last one for ever; that of n2 serves `other`, or nothing."""

    def __init__(self, *texts: str, other: str | None = None) -> None:
        super().__init__()
        self._texts, self._other = list(texts), other

    def items(self, *_: Any, **__: Any) -> Any:
        port = {"name": "metrics", "containerPort": 9408}
        return done([
            {"metadata": {"namespace": "gpushare-system", "name": node},
             "spec": {"nodeName": node, "containers": [{"ports": [port]}]}}
            for node in ("n1", "n2")
        ])  # fmt: skip

    def proxied(self, _: str, pod: str, *__: Any) -> Any:
        text = (
            self._other
            if pod == "n2"
            else self._texts.pop(0)
            if len(self._texts) > 1
            else next(iter(self._texts), None)
        )
        if text is None:
            failed: Future[str] = Future()
            failed.set_exception(UnreachableError("no route"))
            return failed
        return done(text)


def done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def test_a_minutes_watch_looks_every_five_seconds() -> None:
    clock = MovedClock()
    agents = TwoAgents(served(2, 0.5, 1), served(2, 0.5, 3), served(2, 0.5, 2), other="")
    lines: list[str] = []
    (seen,), unreached = watch_shares(agents, "gpushare-system", [share()], GPUS, 60, clock, clock.sleep, lines.append)
    assert [lines[0], lines[-1], len(lines)] == ["5 of 60 s watched", "60 of 60 s watched", 12]
    assert clock.slept == [0.0] + [5.0] * 12
    assert (seen.end - seen.begin, seen.step, unreached) == (60.0, 5.0, [])
    assert seen.clients is not None
    assert seen.clients.samples == 13
    (advice,) = recommend(seen).advice
    assert (advice.change, advice.sure) == ("memory.default 12Gi", Sureness.LOW)


def test_a_shorter_watch_recommends_nothing() -> None:
    clock = MovedClock()
    (seen,), _ = watch_shares(TwoAgents(served(2, 0.5, 1), other=""), "", [share()], GPUS, 30, clock, clock.sleep)
    assert recommend(seen).advice == ()
    assert any("seen for 30s, too short a history: at least 1m is needed" in note for note in recommend(seen).notes)


def test_an_agent_that_is_not_reached_is_named_and_the_others_count() -> None:
    clock = MovedClock()
    (seen,), unreached = watch_shares(TwoAgents(served(2, 0.5, 1)), "", [share()], GPUS, 60, clock, clock.sleep)
    assert unreached == ["the agent of node n2"]
    assert seen.gpus[0].samples == 13


def test_where_no_agent_is_reached_the_reason_is_told() -> None:
    clock = MovedClock()
    with pytest.raises(UnreachableError, match=r"no agent was reached: no route; .*; --prometheus reads"):
        watch_shares(TwoAgents(), "", [share()], GPUS, 60, clock, clock.sleep)


def test_a_long_watch_looks_at_most_so_often() -> None:
    clock = MovedClock()
    watch_shares(TwoAgents(served(2, 0.5, 1), other=""), "", [share()], GPUS, 3600, clock, clock.sleep)
    assert clock.slept == [0.0] + [30.0] * 120
