"""The control daemon, as its clients see it."""

import os
import select

import pytest

from gpushare.simulation.client import SimulatedContext


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change the user")
def test_a_second_user_waits_in_single_user_mode(driver, daemon):
    """Measured: other UID without -multiuser-server waits until the first user's clients are gone."""
    daemon()
    reader, writer = os.pipe()
    may_begin, begin = os.pipe()
    child = os.fork()
    if not child:
        os.read(may_begin, 1)
        os.setuid(1000)
        os.write(writer, b".")
        context = SimulatedContext.create()
        os.write(writer, b"%d" % context.under_mps)
        os._exit(0)
    first = SimulatedContext.create()
    os.write(begin, b".")
    assert os.read(reader, 1) == b".", "it has begun"
    assert select.select([reader], [], [], 0.4)[0] == [], "it did not wait"
    first.close()
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1"
    for descriptor in (reader, writer, may_begin, begin):
        os.close(descriptor)
