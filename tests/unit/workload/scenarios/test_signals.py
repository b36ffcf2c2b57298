"""Scenarios with worker processes end soon after SIGTERM, and so do their workers."""

import time
from collections.abc import Callable

import pytest

from tests.unit.workload.conftest import SECONDS, Client, children, wait_gone

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
LONG = {
    "pool": ("pool", "--modes", "process-per-task", "--tasks", "1000"),
    "pipeline": ("pipeline", "--elements", "2000000000", "--prepare", "2"),
    "refine": ("refine", "--size", "30", "--tolerance", "0", "--sweeps", "100000000"),
}


@pytest.mark.parametrize("name", LONG)
def test_sigterm_ends_a_program_and_its_workers_soon(name: str, start_client: Callable[..., Client]) -> None:
    client = start_client(*LONG[name])
    workers = wait_for_children(client.process.pid)
    status = client.terminate()
    assert (status, client.lines[-1]["event"]) == (4, "stopped")
    wait_gone(workers)


def wait_for_children(pid: int) -> list[int]:
    """The workers of a program, once one of them runs."""
    end = time.monotonic() + SECONDS
    while not (pids := children(pid)):
        assert time.monotonic() < end, "no worker was started"
        time.sleep(0.02)
    return sorted(pids)
