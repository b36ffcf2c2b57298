"""Which contexts fail together, as measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.simulation.driver.failure_outcome import FailureCause, outcome_of

CULPRIT, NEIGHBOURS = 1, (2, 3)


@pytest.mark.parametrize(
    ("cause", "remaining_ms", "errors"),
    [
        pytest.param(
            FailureCause.ILLEGAL_ADDRESS, 0, {1: 700, 2: 700, 3: 700}, id="an illegal address ends all with 700"
        ),
        pytest.param(FailureCause.TRAP, 0, {1: 719, 2: 719, 3: 719}, id="a trap ends everyone with 719"),
        pytest.param(FailureCause.ASSERT, 0, {1: 710}, id="an assert ends its own program with 710"),
        pytest.param(FailureCause.DEATH, 0, {}, id="an idle client's death hurts nobody"),
        pytest.param(FailureCause.DEATH, 6, {}, id="a death with 6 ms of kernel left hurts nobody"),
        pytest.param(
            FailureCause.DEATH, 10, {2: 700, 3: 700}, id="a death with 10 ms of kernel left ends the neighbours"
        ),
        pytest.param(
            FailureCause.TERMINATED, 1000, {1: 810}, id="terminate_client ends its client alone, in mid-kernel too"
        ),
        pytest.param(FailureCause.SERVER_LOST, 0, {2: 806, 3: 806}, id="the server's death ends its clients with 806"),
    ],
)
def test_errors(cause, remaining_ms, errors):
    assert outcome_of(cause, CULPRIT, NEIGHBOURS, remaining_ms).errors == errors


@pytest.mark.parametrize("cause", [FailureCause.ILLEGAL_ADDRESS, FailureCause.DEATH])
def test_the_xid_of_a_fault_names_an_innocent(cause):
    number, victim = outcome_of(cause, CULPRIT, NEIGHBOURS, 100).xid
    assert number == 31
    assert victim in NEIGHBOURS


def test_a_lone_death_in_mid_kernel_poisons_the_server():
    outcome = outcome_of(FailureCause.DEATH, CULPRIT, (), 100)
    assert (outcome.errors, outcome.fatal, outcome.poisoned) == ({}, False, True)


@given(st.sampled_from(list(FailureCause)), st.lists(st.integers(2, 50), unique=True), st.floats(0, 1e6))
def test_the_server_faults_only_when_it_loses_every_client(cause, neighbours, remaining_ms):
    outcome = outcome_of(cause, CULPRIT, neighbours, remaining_ms)
    if outcome.fatal:
        assert set(neighbours) <= set(outcome.errors)
    assert set(outcome.errors) <= {CULPRIT, *neighbours}
