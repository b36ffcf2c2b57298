"""Who attached, and of whom it is certain that they have not."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpushare.agent.attach.arrivals import MAX_KEPT, NO_ATTACHES, ArrivalLog, BrokerFiles
from gpushare.mps.files import ModelFiles, write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import MAX_ARRIVALS, Arrival, BrokerState
from gpushare.process.procfs import TICKS_PER_SECOND

GPU = "GPU-0"
NAMES = {"uid-a": "team/a", "uid-b": "team/b"}
HOLDERS = ("team/a", "team/b")
LATER = {"team/a": 5.0, "team/b": 5.0}
"""Both got their slots after the log began, at 1.0."""


def arrival(pid: int, at: float, pod: str = "uid-a") -> Arrival:
    return Arrival(pid=pid, pod_uid=pod, container="app", at=at)


def broker(*arrivals: Arrival, attached: int | None = None) -> BrokerState:
    return BrokerState(
        uuid=GPU,
        heartbeat=0.0,
        listening=True,
        arrivals=list(arrivals),
        attached=len(arrivals) if attached is None else attached,
    )


def log(*states: BrokerState) -> ArrivalLog:
    """Read at 1.0, 2.0 and so on."""
    made = ArrivalLog()
    for number, state in enumerate(states):
        made.update(state, 1.0 + number)
    return made


def without_client(made: ArrivalLog, absent: dict[str, float] = LATER) -> set[str]:
    return set(made.attaches(GPU, HOLDERS, absent, NAMES).without_client)


def test_a_pod_that_has_not_attached_since_it_got_its_slot_has_no_client() -> None:
    assert without_client(log(broker(), broker(arrival(7, 6.0)))) == {"team/b"}


def test_one_that_may_have_attached_before_the_log_began_may_have_a_client() -> None:
    assert without_client(log(broker()), {"team/a": 0.5, "team/b": 5.0}) == {"team/b"}
    assert without_client(log(broker()), {"team/b": 5.0}) == {"team/b"}


def test_without_a_broker_everybody_may_have_a_client() -> None:
    assert ArrivalLog().attaches(GPU, HOLDERS, LATER, NAMES) == NO_ATTACHES


def test_after_a_broker_that_counts_from_0_again_arrivals_may_be_missing() -> None:
    made = log(broker(attached=3), broker(attached=0))
    assert without_client(made, {"team/a": 1.5, "team/b": 2.5}) == {"team/b"}


def test_arrivals_may_be_missing_after_a_burst() -> None:
    burst = [arrival(100 + number, 3.0) for number in range(MAX_ARRIVALS)]
    made = log(broker(arrival(7, 1.5)), broker(*burst, attached=500))
    assert without_client(made, {"team/b": 1.5}) == set()
    assert without_client(made, {"team/b": 2.5}) == {"team/b"}


def test_a_process_whose_pod_is_not_known_may_be_anybody_s() -> None:
    assert without_client(log(broker(), broker(arrival(7, 6.0, pod="")))) == set()
    assert without_client(log(broker(), broker(arrival(7, 6.0, pod="of another node's file")))) == set(HOLDERS)


def test_the_latest_come_first_and_each_once() -> None:
    made = log(broker(arrival(7, 1.0)), broker(arrival(7, 1.0), arrival(8, 2.0)), broker(arrival(8, 2.0), attached=9))
    assert [arrival.pid for arrival in made.attaches(GPU, (), {}, {}).latest] == [8, 7]


def test_an_arrival_is_news_and_a_heartbeat_is_none() -> None:
    made = ArrivalLog()
    assert not made.update(broker(), 1.0)
    assert made.update(broker(arrival(7, 1.5)), 2.0)
    assert not made.update(broker(arrival(7, 1.5)), 3.0)
    assert made.update(broker(arrival(7, 1.5), attached=2), 4.0)


def test_a_gpu_that_was_given_back_is_forgotten() -> None:
    made = log(broker(arrival(7, 1.0)))
    made.keep([])
    assert made.attaches(GPU, HOLDERS, LATER, NAMES) == NO_ATTACHES


def test_an_arrival_that_is_no_longer_kept_clears_nobody() -> None:
    made, listed = log(broker(), broker(arrival(1, 1.5))), [arrival(1, 1.5)]
    for number in range(MAX_KEPT + 10):
        listed = [*listed, arrival(number + 2, 2.0 + number, "uid-b")][-MAX_ARRIVALS:]
        made.update(broker(*listed, attached=number + 2), 2.5 + number)
    assert len(made.attaches(GPU, (), {}, NAMES).latest) == MAX_KEPT
    assert without_client(made, {"team/a": 1.2}) == set()


@given(st.lists(st.integers(1, MAX_ARRIVALS), max_size=20), st.floats(0.5, 40.0))
def test_who_attached_is_never_cleared_however_many_others_did(bursts: list[int], absent: float) -> None:
    made, pid, listed = ArrivalLog(), 1, [arrival(1, 10.0)]
    made.update(broker(), 0.0)
    made.update(broker(*listed), 10.5)
    for turn, burst in enumerate(bursts):
        fresh = [arrival(pid + number + 1, 11.0 + turn, "uid-b") for number in range(burst)]
        pid += burst
        listed = [*listed, *fresh][-MAX_ARRIVALS:]
        made.update(broker(*listed, attached=pid), 11.5 + turn)
    got_its_slot = min(absent, 9.9)
    assert "team/a" not in without_client(made, {"team/a": got_its_slot})
    assert len(made.attaches(GPU, (), {}, {}).latest) <= MAX_KEPT


def directories(root: Path) -> Iterable[GpuDir]:
    made = GpuDir(root / GPU)
    made.broker.mkdir(parents=True, exist_ok=True)
    return [made, GpuDir(root / "GPU-without-broker")]


def test_a_file_is_read_once_for_each_writing(tmp_path: Path) -> None:
    gpus, files = directories(tmp_path), BrokerFiles(ModelFiles())
    path = next(iter(gpus)).broker_state
    assert files.changed(gpus) == []
    write_model(path, broker())
    assert files.changed(gpus) == [broker()]
    assert files.changed(gpus) == []
    write_model(path, broker(arrival(7, 1.0)))
    assert files.changed(gpus) == [broker(arrival(7, 1.0))]
    path.write_text("{")
    assert files.changed(gpus) == []


def test_a_file_that_names_another_gpu_is_ignored_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpus, files = directories(tmp_path), BrokerFiles(ModelFiles())
    path = next(iter(gpus)).broker_state
    for attached in (1, 2):
        write_model(path, structs.replace(broker(attached=attached), uuid="GPU-9"))
        assert files.changed(gpus) == []
    assert [record.getMessage() for record in caplog.records] == [f"{path} names another GPU and is ignored: 'GPU-9'"]
    write_model(path, broker())
    assert files.changed(gpus) == [broker()]


def test_a_client_attached_when_the_broker_says() -> None:
    made = log(broker(arrival(7, 6.0)), broker(arrival(7, 6.0), arrival(8, 7.5)))
    assert made.attached(GPU, [(7, 0), (8, 0), (9, 0)]) == {7: 6.0, 8: 7.5}
    assert made.attached("another", [(7, 0)]) == {}


def test_an_arrival_is_not_that_of_a_later_process_with_its_pid() -> None:
    made = log(broker(arrival(7, 6.0)))
    assert made.attached(GPU, [(7, 6 * TICKS_PER_SECOND)]) == {7: 6.0}
    assert made.attached(GPU, [(7, 6 * TICKS_PER_SECOND + 1)]) == {}
    assert log(broker(arrival(7, 6.0), arrival(7, 9.0))).attached(GPU, [(7, 8 * TICKS_PER_SECOND)]) == {7: 9.0}


def test_a_client_that_the_broker_still_lists_is_known() -> None:
    states = [broker(arrival(7, 1.0), arrival(100 + n, 2.0 + n), attached=2 + n) for n in range(MAX_KEPT + 1)]
    assert log(*states).attached(GPU, [(7, 0)]) == {7: 1.0}
