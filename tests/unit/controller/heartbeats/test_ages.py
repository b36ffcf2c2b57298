"""Which agents count as silent, as seconds of the observer's clock pass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.controller.heartbeats.ages import LONGEST_STEP, POLL_SECONDS, HeartbeatAges
from gpushare.kube.coordination.heartbeat import LEASE_SECONDS, RENEW_SECONDS, Renewal

NODE = "n1"


class Watched:
    """One node's Lease under the eyes of an observer, whose clock a test moves."""

    def __init__(self, version: int | None = 1) -> None:
        self.ages = HeartbeatAges()
        self.now = 1000.0
        self.version = version

    def look(self, after: float = POLL_SECONDS, *, renewed: bool = False) -> bool | None:
        """The next reading, `after` seconds later. `renewed`: the agent has renewed its Lease in between."""
        self.now += after
        if renewed:
            self.version = (self.version or 0) + 1
        renewals = {} if self.version is None else {NODE: Renewal(self.version, f"time {self.version}", "pod")}
        self.ages.observe([NODE], renewals, self.now)
        return self.ages.is_reporting(NODE)


@pytest.fixture
def reporting() -> Watched:
    """An agent whose renewals were seen."""
    watched = Watched()
    watched.look()
    assert watched.look(renewed=True) is True
    return watched


def test_of_what_is_seen_for_the_first_time_nothing_is_said() -> None:
    watched = Watched()
    assert [watched.look() for _ in range(4)] == [None] * 4
    assert watched.look() is False, "nobody renewed it under our eyes for 40 s"


def test_the_first_renewal_that_is_seen_is_news() -> None:
    watched = Watched()
    assert [watched.look(), watched.look(renewed=True)] == [None, True]


def test_an_agent_that_renews_every_ten_seconds_reports(reporting: Watched) -> None:
    assert all(reporting.look(renewed=True) for _ in range(100))


def test_after_its_last_renewal_an_agent_is_silent_within_fifty_seconds(reporting: Watched) -> None:
    assert [reporting.look() for _ in range(4)] == [True, True, True, False]
    assert LEASE_SECONDS + POLL_SECONDS <= 50


def test_three_renewals_may_be_missed(reporting: Watched) -> None:
    assert [reporting.look(), reporting.look(), reporting.look(), reporting.look(renewed=True)] == [True] * 4


def test_a_silent_agent_reports_again_with_its_first_renewal(reporting: Watched) -> None:
    assert reporting.look(LONGEST_STEP) is True
    assert reporting.look(LONGEST_STEP) is False
    assert reporting.look(renewed=True) is True


def test_a_lease_that_never_comes_and_one_that_was_deleted_are_silent(reporting: Watched) -> None:
    never = Watched(version=None)
    assert [never.look() for _ in range(5)] == [None, None, None, None, False]
    reporting.version = None
    assert [reporting.look() for _ in range(4)] == [True, True, True, False]


def test_a_lease_that_comes_late_is_news() -> None:
    watched = Watched(version=None)
    watched.look()
    assert watched.look(renewed=True) is True


def test_another_api_server_that_shows_the_past_renews_nothing(reporting: Watched) -> None:
    reporting.look(renewed=True)
    assert reporting.version is not None
    for step in (-1, 1, -1):
        reporting.version += step
        reporting.look()
    assert reporting.look() is False, "it stood still for 40 s, whoever showed it"


def test_an_edit_that_renews_nothing_is_no_heartbeat(reporting: Watched) -> None:
    for version in range(100, 104):
        reporting.now += POLL_SECONDS
        reporting.ages.observe([NODE], {NODE: Renewal(version, f"time {reporting.version}", "pod")}, reporting.now)
    assert reporting.ages.is_reporting(NODE) is False


def test_another_pod_of_the_agent_is_news_whatever_its_clock_says(reporting: Watched) -> None:
    reporting.look(LONGEST_STEP)
    reporting.look(LONGEST_STEP)
    reporting.ages.observe([NODE], {NODE: Renewal(50, f"time {reporting.version}", "pod-2")}, reporting.now)
    assert reporting.ages.is_reporting(NODE) is True


@pytest.mark.parametrize("outage", [60.0, 3600.0, 1e6])
def test_after_an_outage_of_ours_every_agent_has_its_time_to_renew(reporting: Watched, outage: float) -> None:
    assert reporting.look(outage) is True
    assert reporting.look(renewed=True) is True


def test_a_node_that_is_gone_is_forgotten(reporting: Watched) -> None:
    reporting.ages.observe([], {}, reporting.now)
    assert reporting.ages.is_reporting(NODE) is None
    assert reporting.look() is None, "it is a new one"


readings = st.lists(st.tuples(st.floats(0.0, 300.0), st.booleans()), min_size=1, max_size=60)


@given(readings)
def test_silent_is_exactly_who_did_not_renew_for_the_lease_in_watched_time(steps: list[tuple[float, bool]]) -> None:
    """Sums of our own say the same: a step counts twice the poll's interval at most, and the first reading is no
    news."""
    watched, waited, seen = Watched(), 0.0, False
    watched.look()
    for step, renewed in steps:
        said = watched.look(step, renewed=renewed)
        waited = 0.0 if renewed else waited + min(step, LONGEST_STEP)
        seen = seen or renewed
        if abs(waited - LEASE_SECONDS) < 1e-6:
            continue  # sums of floats may end on either side
        assert said is (False if waited >= LEASE_SECONDS else (True if seen else None))


@given(st.lists(st.floats(0.0, 9.0), min_size=5, max_size=50))
def test_an_agent_in_its_rhythm_is_never_silent_however_late_we_look(delays: list[float]) -> None:
    """Renewals lie RENEW_SECONDS apart; readings are late by up to nine seconds each."""
    watched, renewed_at = Watched(), 1000.0
    watched.look()
    for delay in delays:
        due = watched.now + POLL_SECONDS + delay - renewed_at >= RENEW_SECONDS
        renewed_at = watched.now + POLL_SECONDS + delay if due else renewed_at
        assert watched.look(POLL_SECONDS + delay, renewed=due) is not False
