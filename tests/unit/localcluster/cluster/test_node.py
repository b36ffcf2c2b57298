"""Restarts of components."""

from localcluster.cluster.node import backoff


def test_a_failing_component_starts_ever_more_slowly_within_ten_seconds() -> None:
    waits = [backoff(failures) for failures in range(20)]
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] == 10
