"""Who borrows, when a GPU is short, who goes, and when: by tables, and whatever readings come."""

from dataclasses import replace
from signal import Signals
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.observe.borrowing import (
    LINGER_SECONDS,
    RETURN_SECONDS,
    Act,
    Course,
    Policy,
    Shortage,
    ShortageStep,
    borrowings,
    shortage,
    step,
)
from gpushare.agent.observe.usage import Reading, Usage
from gpushare.agent.process.processes import identity
from gpushare.grant.model import Grant
from tests.unit.agent.observed_pods import UUID, container_id, process, uid, usage

GPU_MIB = 80_000
GRANT = Grant("a", 25, 8192, 1, burst_mib=16384)
"""Reserved 8 GiB, at most 24 GiB."""
PLAIN = Grant("a", 25, 8192, 1)
TERMINATE = Policy(terminates=True, grace=30.0)
AUDIT = Policy(terminates=False, grace=30.0)


def client(number: int, memory_mib: int, grant: Grant | None = GRANT, *, started: int = 100, **fields: Any) -> Usage:
    """The container of pod `number`, with one process, whose PID is the same."""
    values = {"pod_uid": uid(number), "pod": f"pod-{number}", "container_id": container_id(number), "grant": grant}
    listed = fields.pop("processes", (process(number, memory_mib, started=started),))
    return usage(*listed, **values | fields)


def reading(*usages: Usage, free: int | None = None, at: float = 100.0) -> Reading:
    """`free`: by default what the usages leave of the GPU."""
    left = GPU_MIB - sum(item.memory_mib for item in usages) if free is None else free
    return Reading(UUID, "a", at, GPU_MIB, usages, free_mib=left)


@pytest.mark.parametrize(
    ("seen", "mib"),
    [
        pytest.param(client(1, 20_000), 11_808, id="above what is reserved"),
        pytest.param(client(1, 8192), 0, id="all that is reserved"),
        pytest.param(client(1, 8192 + 128), 0, id="what NVML may show more than MPS counts"),
        pytest.param(client(1, 30_000), 21_808, id="above its limit, too"),
        pytest.param(client(1, 20_000, PLAIN), 0, id="without a limit above its reservation: a violation"),
        pytest.param(client(1, 20_000, None, slot=False), 0, id="without a grant"),
    ],
)
def test_a_container_borrows_what_it_uses_above_its_reservation(seen: Usage, mib: int) -> None:
    assert [borrowing.mib for borrowing in borrowings(reading(seen))] == ([mib] if mib else [])


def test_the_lowest_priority_goes_first_and_of_the_same_who_borrows_most() -> None:
    seen = [client(1, 12_000), client(2, 20_000), client(3, 23_000, priority=1000), client(4, 9000, priority=-5)]
    assert [borrowing.usage.pod for borrowing in borrowings(reading(*seen))] == ["pod-4", "pod-2", "pod-1", "pod-3"]


def test_contradicting_figures_make_no_borrower_and_no_shortage() -> None:
    seen = reading(client(1, 60_000), client(2, 60_000), free=0)
    assert borrowings(seen) == ()
    assert shortage(seen, 0) is None


ENDED = client(2, 2192, processes=(replace(process(2, 2192), terminated=True),))


@pytest.mark.parametrize(
    ("seen", "free", "waiting", "lack"),
    [
        pytest.param([client(1, 20_000), client(2, 2192)], 6000, 0, 0, id="exactly what the other has reserved"),
        pytest.param([client(1, 20_000), client(2, 2192)], 5000, 0, 1000, id="less than the other has reserved"),
        pytest.param([client(1, 20_000)], 100, 0, -100, id="nobody else is there"),
        pytest.param([client(1, 20_000)], 100, 218, 118, id="somebody waits to get in"),
        pytest.param([client(1, 20_000), client(2, 2192, PLAIN)], 0, 0, 6000, id="who may not borrow has reserved too"),
        pytest.param([client(1, 20_000), client(2, 500, None)], 0, 0, 0, id="who has no grant has reserved nothing"),
        pytest.param([client(1, 20_000), ENDED], 0, 0, 0, id="whose contexts were ended needs nothing any more"),
    ],
)
def test_a_gpu_lacks_what_clients_have_reserved_and_is_not_free(
    seen: list[Usage], free: int, waiting: int, lack: int
) -> None:
    short = shortage(reading(*seen, free=free), waiting)
    assert short is not None
    assert short.mib == lack


def test_without_nvmls_figure_nothing_is_known_and_nothing_changes() -> None:
    unknown = replace(reading(client(1, 20_000)), free_mib=None)
    assert shortage(unknown, 0) is None
    course = Course(shown=True)
    assert step(course, unknown, None, TERMINATE) == (course, None)


class Gpu:
    """Readings two seconds apart."""

    def __init__(self, policy: Policy = TERMINATE) -> None:
        self.policy = policy
        self.course = Course()
        self.now = 100.0

    def read(self, *usages: Usage, free: int | None = None, seconds: float = 2.0) -> ShortageStep | None:
        self.now += seconds
        seen = reading(*usages, free=free, at=self.now)
        self.course, due = step(self.course, seen, shortage(seen, 0), self.policy)
        return due

    def until(self, act: Act, *usages: Usage, free: int | None = None) -> ShortageStep:
        for _ in range(60):
            due = self.read(*usages, free=free)
            if due is not None:
                assert due.act is act
                return due
        raise AssertionError(f"no {act}")


BORROWER, OTHER = client(1, 20_000), client(2, 2192)
SHORT = {"free": 1000}


def test_one_reading_gives_nobody_notice_and_two_do() -> None:
    gpu = Gpu()
    assert gpu.read(BORROWER, OTHER, **SHORT) is None
    due = gpu.read(BORROWER, OTHER, **SHORT)
    assert due is not None
    assert (due.act, due.usage, due.mib, due.ends) == (Act.NOTICE, BORROWER, 11_808, True)
    assert due.shortage == Shortage(1000, 6000)


def test_a_new_borrower_on_a_short_gpu_gets_notice_by_its_second_reading() -> None:
    gpu = Gpu()
    for _ in range(3):
        assert gpu.read(OTHER, **SHORT) is None, "nobody borrows"
    assert gpu.read(BORROWER, OTHER, **SHORT) is None
    due = gpu.read(BORROWER, OTHER, **SHORT)
    assert due is not None
    assert due.act is Act.NOTICE


def test_a_shortage_that_comes_and_goes_between_readings_is_none() -> None:
    gpu = Gpu()
    for _ in range(20):
        assert gpu.read(BORROWER, OTHER, **SHORT) is None
        assert gpu.read(BORROWER, OTHER, free=7000) is None


def test_what_figures_may_be_wrong_by_is_no_shortage() -> None:
    gpu = Gpu()
    for _ in range(5):
        assert gpu.read(BORROWER, OTHER, free=6000 - 128) is None


def test_a_borrower_is_ended_once_its_grace_period_is_over_and_not_before() -> None:
    gpu = Gpu()
    gpu.until(Act.NOTICE, BORROWER, OTHER, **SHORT)
    noticed = gpu.now
    due = gpu.until(Act.END, BORROWER, OTHER, **SHORT)
    assert (due.usage, due.processes) == (BORROWER, BORROWER.processes)
    assert 30.0 <= gpu.now - noticed < 33.0


def test_with_audit_it_is_told_once_and_never_ended() -> None:
    gpu = Gpu(AUDIT)
    due = gpu.until(Act.NOTICE, BORROWER, OTHER, **SHORT)
    assert not due.ends
    assert [gpu.read(BORROWER, OTHER, **SHORT) for _ in range(60)] == [None] * 60


def test_a_share_that_turns_to_terminate_gives_notice_again() -> None:
    gpu = Gpu(AUDIT)
    gpu.until(Act.NOTICE, BORROWER, OTHER, **SHORT)
    gpu.policy = TERMINATE
    assert gpu.until(Act.NOTICE, BORROWER, OTHER, **SHORT).ends


@pytest.mark.parametrize(
    ("seen", "free"),
    [
        pytest.param([client(1, 8192), OTHER], 12_000, id="it gave back what it had borrowed"),
        pytest.param([OTHER], 20_000, id="it has ended"),
        pytest.param([client(1, 20_000)], 2000, id="who had reserved it has ended"),
        pytest.param([BORROWER, OTHER], 6000, id="memory came back"),
    ],
)
def test_a_notice_is_withdrawn_once_the_gpu_is_short_no_more(seen: list[Usage], free: int) -> None:
    gpu = Gpu()
    gpu.until(Act.NOTICE, BORROWER, OTHER, **SHORT)
    assert gpu.until(Act.OVER, *seen, free=free).usage == BORROWER
    assert [gpu.read(*seen, free=free) for _ in range(30)] == [None] * 30


def test_nobody_is_ended_by_a_reading_that_shows_no_shortage() -> None:
    gpu = Gpu()
    gpu.until(Act.NOTICE, BORROWER, OTHER, **SHORT)
    assert gpu.read(BORROWER, OTHER, free=7000, seconds=60.0) is None
    assert gpu.read(BORROWER, OTHER, **SHORT) is None, "one reading alone"
    assert gpu.until(Act.END, BORROWER, OTHER, **SHORT).usage == BORROWER


def test_who_has_notice_keeps_it_when_another_one_borrows_more() -> None:
    gpu = Gpu()
    gpu.until(Act.NOTICE, BORROWER, OTHER, **SHORT)
    assert gpu.until(Act.END, BORROWER, client(3, 24_000), OTHER, **SHORT).usage == BORROWER


def test_a_grant_that_is_only_assumed_ends_nobody() -> None:
    gpu = Gpu()
    assumed = client(1, 20_000, by_default=True)
    assert [gpu.read(assumed, OTHER, **SHORT) for _ in range(40)] == [None] * 40
    assert gpu.until(Act.NOTICE, assumed, client(3, 9000), OTHER, **SHORT).usage.pod == "pod-3"


def ended(seen: Usage) -> Usage:
    return replace(seen, processes=tuple(replace(process, terminated=True) for process in seen.processes))


def test_the_next_one_waits_for_the_memory_of_the_one_before() -> None:
    gpu, second = Gpu(), client(3, 15_000)
    gpu.until(Act.END, *_noticed(gpu, BORROWER, second, OTHER), **SHORT)
    end = gpu.now
    assert gpu.read(ended(BORROWER), second, OTHER, **SHORT) is None, "its memory may come back yet"
    due = gpu.read(second, OTHER, **SHORT)
    assert due is not None
    assert (due.act, due.usage) == (Act.NOTICE, second)
    assert gpu.now - end < RETURN_SECONDS


def _noticed(gpu: Gpu, *usages: Usage) -> tuple[Usage, ...]:
    gpu.until(Act.NOTICE, *usages, **SHORT)
    return usages


def test_a_silent_daemon_is_asked_again_for_the_same_processes() -> None:
    gpu = Gpu()
    gpu.until(Act.END, *_noticed(gpu, BORROWER, OTHER), **SHORT)
    fresh = replace(BORROWER, processes=(*BORROWER.processes, process(9, 100, started=500)))
    due = gpu.read(fresh, OTHER, **SHORT)
    assert due is not None
    assert (due.act, due.processes) == (Act.END, BORROWER.processes)


def test_a_lingering_borrower_gets_signals_before_the_next_gets_notice() -> None:
    gpu, second = Gpu(), client(3, 15_000)
    gpu.until(Act.END, *_noticed(gpu, BORROWER, second, OTHER), **SHORT)
    end, sent = gpu.now, []
    while gpu.now - end < RETURN_SECONDS - 2:
        due = gpu.read(ended(BORROWER), second, OTHER, **SHORT)
        if due is not None:
            sent.append((gpu.now - end >= LINGER_SECONDS, due.act, due.signal))
    assert set(sent) == {(True, Act.SIGNAL, Signals.SIGTERM), (True, Act.SIGNAL, Signals.SIGKILL)}
    assert gpu.until(Act.NOTICE, ended(BORROWER), second, OTHER, **SHORT).usage == second


def test_no_signal_goes_to_a_container_in_which_a_client_computes() -> None:
    """The end of its main process would cut off that client's kernel, and so end the neighbours."""
    gpu = Gpu()
    gpu.until(Act.END, *_noticed(gpu, BORROWER, OTHER), **SHORT)
    beside = replace(BORROWER, processes=(*ended(BORROWER).processes, process(9, 100, started=500)))
    acts = [due.act for _ in range(20) if (due := gpu.read(beside, OTHER, **SHORT)) is not None]
    assert Act.SIGNAL not in acts


def test_a_container_that_starts_again_gets_a_notice_of_its_own() -> None:
    gpu = Gpu()
    gpu.until(Act.END, *_noticed(gpu, BORROWER, OTHER), **SHORT)
    again = client(1, 20_000, started=900, container_id=container_id(77))
    assert gpu.until(Act.NOTICE, again, OTHER, **SHORT).usage == again


CLIENTS = st.builds(
    client,
    st.integers(1, 5),
    st.integers(100, 24_000),
    st.sampled_from([GRANT, PLAIN, None]),
    priority=st.integers(-1, 1),
    by_default=st.booleans(),
)


def _distinct(usages: list[Usage]) -> list[Usage]:
    return list({item.pod: item for item in usages}.values())


READINGS = st.lists(
    st.tuples(st.lists(CLIENTS, max_size=5).map(_distinct), st.integers(0, 30_000), st.floats(0.5, 20.0)), max_size=40
)


@given(READINGS, st.sampled_from([TERMINATE, AUDIT]))
def test_no_readings_name_a_client_within_its_reservation_or_end_unwarned(
    readings: list[tuple[list[Usage], int, float]], policy: Policy
) -> None:
    gpu = Gpu(policy)
    noticed: dict[str, float] = {}
    short_before = False
    for usages, free, seconds in readings:
        gpu.now += seconds
        seen = reading(*usages, free=free, at=gpu.now)
        lack = shortage(seen, 0)
        gpu.course, due = step(gpu.course, seen, lack, policy)
        short = lack is not None and lack.mib > 0
        if due is not None and due.act is Act.NOTICE:
            assert short
            assert short_before, "one reading alone"
            assert not noticed, "one at a time"
            assert due.usage in usages
            assert due.usage.grant is not None
            assert due.usage.memory_mib > due.usage.grant.memory_mib
            assert not due.usage.by_default
            noticed[due.usage.pod] = gpu.now
        elif due is not None and due.act is Act.OVER:
            noticed.clear()
        elif due is not None and due.act is Act.END and due.usage.pod in noticed:
            assert policy.terminates
            assert short
            assert short_before
            assert gpu.now - noticed.pop(due.usage.pod) >= policy.grace
            assert set(map(identity, due.processes)) == set(map(identity, due.usage.processes))
        elif due is not None:
            assert gpu.course.ending is not None, "it follows an end"
        if lack is not None:
            short_before = short
