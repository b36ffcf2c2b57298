"""Properties are judged by what holds, not by how long an example takes: that says more of the machine's other work."""

import socket

import pytest
from hypothesis import settings

# A run says the same of the same tree; `make test-long` draws ten times as many, and others.
settings.register_profile("the same", deadline=None, derandomize=True)
settings.register_profile("anew", deadline=None, max_examples=1000)
settings.load_profile("the same")


@pytest.fixture
def free_ports() -> list[int]:
    """Two TCP ports that nothing listened on a moment ago."""
    with socket.socket() as first, socket.socket() as two:
        for probe in (first, two):
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in (first, two)]


@pytest.fixture
def free_port(free_ports: list[int]) -> int:
    return free_ports[0]
