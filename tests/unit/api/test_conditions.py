"""Reasons: what an earlier release wrote into a file is still read."""

from gpushare.api.conditions import DaemonReason
from gpushare.mps.wire import DaemonState, decode


def test_a_state_file_of_an_earlier_release_is_read() -> None:
    state = decode(b'{"uuid": "GPU-1", "share": "a", "heartbeat": 1.0, "reason": "ServerLetGo"}', DaemonState)
    assert state.reason is DaemonReason.SERVER_CONTEXT_LOST
