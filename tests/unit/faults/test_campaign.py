"""Whom the end of an MPS supervisor may have harmed: its clients then, and nobody who began after it."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster.cycles.world import Client, Kind, World
from tests.faults.campaign import Life


class FakeRecorder:
    """`ends`: how many supervisors have ended, at each question; the last one holds."""

    def __init__(self, *ends: int) -> None:
        self._ends = list(ends)

    def died(self) -> Counter[str]:
        return Counter({"mps-supervisor": self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]})


class FakeTenant:
    """`checks`: of each worker that runs, at each question; the last one holds. `errors`: who told of a GPU error."""

    def __init__(self, checks: dict[str, list[int]], errors: tuple[str, ...] = ()) -> None:
        self._checks, self._errors = checks, errors

    def running(self) -> list[dict[str, Any]]:
        return [{"metadata": {"name": name}} for name in self._checks]

    def checks(self, name: str) -> int:
        left = self._checks.get(name, [0])
        return left.pop(0) if len(left) > 1 else left[0]

    def events_of(self, name: str, kind: str) -> list[dict[str, Any]]:
        return [{"event": kind}] if name in self._errors else []

    def explain(self, name: str) -> str:
        return name


def life(*ends: int) -> Life:
    return Life(SimpleNamespace(), FakeRecorder(*ends))  # type: ignore[arg-type]


def world(*clients: Client) -> World:
    made = World()
    made.create("red", per_gpu=4, threads=25)
    for client in clients:
        made.started(client)
    return made


def test_each_end_of_a_supervisor_dooms_who_is_there_once() -> None:
    playing, shared = life(0, 1, 1), world(Client("worker-1", "red", Kind.WORKER))
    assert not playing.hear(shared)
    assert playing.hear(shared)
    shared.started(Client("worker-2", "red", Kind.WORKER))
    assert not playing.hear(shared)
    assert (set(shared.clients), shared.doomed) == ({"worker-2"}, {"worker-1"})


def test_a_supervisors_own_writes_are_judged_again_others_are_differences() -> None:
    judged: list[int] = []

    def harmed() -> None:
        judged.append(1)
        raise AssertionError("worker-1 was harmed")

    with pytest.raises(AssertionError, match="was harmed"):
        life(1, 2, 2).judge(world(), harmed)
    assert len(judged) == 3, "after each of two ends, and once more"


def test_a_client_that_began_later_goes_on_and_one_without_context_ends() -> None:
    clients = [
        Client("worker-1", "red", Kind.WORKER),
        Client("worker-2", "red", Kind.WORKER),
        Client("victim-3", "red", Kind.VICTIM),
        Client("victim-4", "red", Kind.VICTIM),
    ]
    playing, shared = life(1), world(*clients)
    assert playing.hear(shared)
    tenant = FakeTenant({"worker-2": [7, 7, 8], "victim-3": [0], "victim-4": [0]}, errors=("victim-4",))
    playing.spare_the_living(SimpleNamespace(world=shared, tenant=tenant))  # type: ignore[arg-type]
    assert (set(shared.clients), shared.doomed) == ({"worker-2", "victim-3"}, {"worker-1", "victim-4"})
