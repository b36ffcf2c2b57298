"""The control daemon, as its clients see it."""

import os
import select

import pytest

from gpushare.simulation.client import SimulatedContext


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change the user")
def test_a_second_user_waits_in_single_user_mode(driver, daemon):
    """Measured: other UID without -multiuser-server waits until the first user's clients are gone."""
    daemon()
    first = SimulatedContext.create()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setuid(1000)
        os.write(writer, b".")
        context = SimulatedContext.create()
        os.write(writer, b"%d" % context.under_mps)
        os._exit(0)
    assert os.read(reader, 1) == b".", "it has begun"
    assert select.select([reader], [], [], 0.4)[0] == [], "it did not wait"
    first.close()
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1"
    os.close(reader)
    os.close(writer)
