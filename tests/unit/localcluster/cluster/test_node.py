"""Restarts of components."""

from localcluster.cluster.node import backoff


def test_a_component_that_keeps_failing_is_started_ever_more_slowly_but_within_ten_seconds() -> None:
    waits = [backoff(failures) for failures in range(20)]
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] == 10
