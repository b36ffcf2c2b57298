"""A campaign's time is divided over the ways, and what goes wrong with one of them costs the others nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.errors import LocalClusterError
from measurements.gpu.stack.bring import Record
from measurements.peers.cases import CASES, Case
from measurements.peers.results import Results
from measurements.peers.session import INSTALLED, LEAST_SECONDS, Candidate, Deadline, Session, Task, first_part
from measurements.peers.ways.way import Promise

RECORD = Record(False, "sources", "operator:1", "clients:1", {"product": "NVIDIA H200", "driver": "580"})
SECONDS = {"privileges": 1, "long": 1000, "starts": 1, "users": 1}
SAY_MOST = ["starts", "limits", "departures-1000ms", "illegal-access", "throughput", "users"]


@pytest.mark.parametrize(
    ("installs", "left", "expected"),
    [
        pytest.param([30], 400, 400, id="one way gets all"),
        pytest.param([30, 5, 5, 5, 35], 400, 94, id="its installation and a fifth of the rest"),
        pytest.param([5, 5], 400, 200, id="equal ways, equal parts"),
        pytest.param([5, 5, 100], 120, 60, id="no time for the last one's cases"),
        pytest.param([200, 200], 60, 60, id="too little for any: the first tries"),
    ],
)
def test_the_first_way_gets_its_installation_and_an_equal_part(
    installs: list[float], left: float, expected: float
) -> None:
    assert first_part(installs, left) == expected


@given(st.lists(st.floats(1, 60), min_size=1, max_size=7), st.floats(30, 1000))
def test_parts_that_are_used_up_fit_into_the_time_and_leave_none(installs: list[float], left: float) -> None:
    begun = 0
    for number in range(len(installs)):
        if left < LEAST_SECONDS:
            break
        part = first_part(installs[number:], left)
        assert part <= left + 1e-6
        left, begun = left - part, begun + 1
    assert left == pytest.approx(0, abs=LEAST_SECONDS)
    assert begun


def test_the_cases_that_say_most_come_first() -> None:
    assert [name for name in CASES if name != "privileges"][: len(SAY_MOST)] == SAY_MOST


class FakeWay:
    name, namespace, promise = "fake", "none", Promise(None, None)

    def install(self) -> dict[str, Any]:
        return {"repository": "none"}


class NoCluster:
    """kubectl where there is nothing."""

    def items(self, *_: str) -> list[dict[str, Any]]:
        return []

    def within(self, _: str) -> "NoCluster":
        return self

    def __call__(self, *_: str) -> str:
        return ""


class Stubs:
    """Cases of which `long` needs more time than there is, and `starts` goes wrong. `begun`: their names."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cases = {name: self._case(name, seconds) for name, seconds in SECONDS.items()}

    def _case(self, name: str, seconds: float) -> Case:
        def measure(*_: object) -> dict[str, Any]:
            self.begun.append(name)
            if name == "starts":
                raise AssertionError("no pod starts")
            return {}

        return Case(measure, seconds)


def measured(tmp_path: Path, *tasks: tuple[str, list[str]]) -> tuple[bool, dict[str, Results], list[str]]:
    """Measures, and returns whether all has figures, the results by way, and the cases that were begun."""
    (tmp_path / INSTALLED).write_text("fake")
    stubs = Stubs()
    harness: Any = SimpleNamespace(
        kubectl=NoCluster(), layout=SimpleNamespace(state=tmp_path), in_node=lambda _: tmp_path
    )

    def unpacked() -> Any:
        raise LocalClusterError("build/peers/other.tar.xz is not there")

    fake: Any = FakeWay
    ways = {"fake": Candidate(fake, 1), "other": Candidate(unpacked, 1)}
    folders = {name: tmp_path / name for name in ("out", "known", "kept")}
    results = {way: Results(way, RECORD, **folders) for way, _ in tasks}
    todo = [Task(way, cases, results[way]) for way, cases in tasks]
    session = Session(harness, ways, Deadline(100), tmp_path / "log", stubs.cases)
    return session.measure(todo), results, stubs.begun


def test_a_way_that_was_not_packed_is_told_and_the_next_one_is_measured(tmp_path: Path) -> None:
    complete, results, ran = measured(tmp_path, ("other", ["users"]), ("fake", ["users"]))
    assert not complete
    assert ran == ["users"]
    assert results["fake"].is_done("users")
    assert "is not there" in (tmp_path / "out" / "peers-other.json").read_text()


def test_a_case_without_time_is_left_out_and_a_shorter_one_is_not(tmp_path: Path) -> None:
    complete, _, ran = measured(tmp_path, ("fake", ["long", "users"]))
    assert not complete
    assert ran == ["users"]


def test_where_no_pod_starts_nothing_more_is_tried(tmp_path: Path) -> None:
    complete, results, ran = measured(tmp_path, ("fake", ["privileges", "starts", "users"]))
    assert not complete
    assert ran == ["privileges", "starts"]
    assert results["fake"].is_done("privileges")
