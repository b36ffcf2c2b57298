"""SIGTERM and SIGINT, as kubelet and terminal send them."""

import asyncio
import os
import signal

import pytest

from gpushare.process.event_loop import run_until_signal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_work_in_order_and_is_no_error(number: signal.Signals) -> None:
    said: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            said.append("cleaned up")

    assert run_until_signal(work())
    assert said == ["cleaned up"]


def test_an_error_of_the_work_is_raised_and_no_signal_is_told() -> None:
    async def work(fails: bool) -> None:
        if fails:
            raise LookupError("a bug")

    assert not run_until_signal(work(False))
    with pytest.raises(LookupError):
        run_until_signal(work(True))
