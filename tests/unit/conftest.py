"""Properties are judged by what holds, not by how long an example takes: that says more of the machine's other work."""

import socket

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture
def free_port() -> int:
    """A TCP port that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
