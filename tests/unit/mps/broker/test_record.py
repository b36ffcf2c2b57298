"""What is told of arrivals, when there are more than the file has room for, and by the next broker."""

from pathlib import Path

import pytest

from gpushare.mps.broker.admission import AttachDenied
from gpushare.mps.broker.record import FAILING_SECONDS, FAILURES_IN_A_ROW, LOG_SECONDS, BrokerRecord
from gpushare.mps.files import read_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import MAX_ARRIVALS, Arrival, BrokerState, RefusedAttach
from gpushare.process.procfs import TICKS_PER_SECOND, Owner

POD = Owner("11111111-1111-1111-1111-111111111111", "")


class Stand:
    """`living`: when each process that lives started, in seconds, by PID. A second passes with each arrival."""

    def __init__(self, path: Path) -> None:
        self.gpu = GpuDir(path / "GPU-0")
        self.gpu.broker.mkdir(parents=True)
        self.now = 100.0
        self.living: dict[int, float] = {}

    def record(self) -> BrokerRecord:
        made = BrokerRecord(
            self.gpu,
            lambda: self.now,
            lambda: {pid: int(at * TICKS_PER_SECOND) for pid, at in self.living.items()},
        )
        made.restore()
        return made

    def arrives(self, record: BrokerRecord, pid: int, lives: bool = True) -> None:
        self.now += 1
        if lives:
            self.living[pid] = self.now
        record.arrived(pid, POD, "app", new=True)

    def told(self, record: BrokerRecord) -> list[Arrival]:
        return self.state(record).arrivals

    def state(self, record: BrokerRecord) -> BrokerState:
        record.write()
        state = read_model(self.gpu.broker_state, BrokerState).value
        assert state is not None
        return state


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


def test_the_arrival_of_a_client_that_lives_outlasts_any_number_of_others(stand: Stand) -> None:
    record = stand.record()
    stand.arrives(record, 7)
    for pid in range(1000, 1000 + 3 * MAX_ARRIVALS):
        stand.arrives(record, pid, lives=False)
    told = stand.told(record)
    assert [(told[0].pid, told[0].at), told[-1].pid, len(told)] == [(7, 101.0), 999 + 3 * MAX_ARRIVALS, MAX_ARRIVALS]


def test_more_living_clients_than_there_is_room_for_are_the_latest(stand: Stand) -> None:
    record = stand.record()
    for pid in range(1, MAX_ARRIVALS + 2):
        stand.arrives(record, pid)
    assert [arrival.pid for arrival in stand.told(record)] == list(range(2, MAX_ARRIVALS + 2))


def test_the_next_broker_knows_the_arrivals_of_living_clients(stand: Stand) -> None:
    before = stand.record()
    for pid in (7, 8, 9):
        stand.arrives(before, pid)
    stand.told(before)
    del stand.living[8]
    stand.living[9] = stand.now + 1  # a later process with its PID
    after = stand.record()
    assert [(arrival.pid, arrival.at) for arrival in stand.told(after)] == [(7, 101.0)]


def test_a_broker_whose_daemon_comes_back_goes_on_with_what_it_knows(stand: Stand) -> None:
    record = stand.record()
    stand.arrives(record, 7)
    stand.told(record)
    stand.arrives(record, 8)
    record.restore()
    assert [arrival.pid for arrival in stand.told(record)] == [7, 8]


FAILED = AttachDenied(RefusedAttach.FAILED, "no socket can be passed", POD, "app")


def test_attaches_that_fail_in_a_row_are_the_problem_until_one_does_not(stand: Stand) -> None:
    record = stand.record()
    for _ in range(FAILURES_IN_A_ROW - 1):
        record.failed(7, FAILED)
    assert stand.state(record).problem == ""
    record.failed(7, FAILED)
    assert stand.state(record).problem == "attaches fail: no socket can be passed"
    assert [(refusal.reason, refusal.count) for refusal in stand.state(record).refusals] == [
        (FAILED.reason, FAILURES_IN_A_ROW)
    ]
    stand.arrives(record, 7)
    assert stand.state(record).problem == ""


def test_attaches_that_failed_long_ago_are_no_problem(stand: Stand) -> None:
    """While they are one no container starts, so none could show that it is over."""
    record = stand.record()
    for _ in range(FAILURES_IN_A_ROW):
        record.failed(7, FAILED)
    stand.now += FAILING_SECONDS
    assert stand.state(record).problem == ""


def test_a_refusal_again_and_again_is_logged_once_a_minute(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    record = stand.record()
    for _ in range(3):
        record.refused(7, FAILED)
    assert caplog.text.count("PID 7 is refused: AttachFailed: no socket can be passed") == 1
    stand.now += LOG_SECONDS
    record.refused(7, FAILED)
    assert caplog.text.count("PID 7 is refused") == 2
