"""SIGTERM and SIGINT, as kubelet and terminal send them."""

import asyncio
import os
import signal

import pytest

from gpushare.process.end_signals import run_until_signal


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


def test_work_that_ends_by_itself_was_not_ended_by_a_signal_and_its_error_comes_through() -> None:
    async def work(fails: bool) -> None:
        if fails:
            raise LookupError("a bug")

    assert not run_until_signal(work(False))
    with pytest.raises(LookupError):
        run_until_signal(work(True))
