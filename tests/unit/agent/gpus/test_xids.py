"""Xids of the simulated driver, from the kernel's line to the agent."""

import asyncio
import logging
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.agent.gpus.xids import XidWatch
from gpushare.nvml.types import NvmlError, Xid
from gpushare.simulation.nvml import DriverChannel, SimulatedNvml
from tests.unit.simulation.conftest import SECONDS, start_driver


@pytest.fixture
def driver() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sim-") as base:
        process = start_driver(Path(base), gpus=1)
        yield Path(base)
        process.terminate()
        process.wait(SECONDS)


async def test_an_xid_is_seen_and_earlier_ones_are_not(driver: Path) -> None:
    nvml, admin = SimulatedNvml(driver), DriverChannel(driver)
    uuid = nvml.gpus().infos[0].uuid
    admin.ask("lose", uuid=uuid)
    admin.ask("recover", uuid=uuid)
    seen: asyncio.Queue[Xid] = asyncio.Queue()
    assert nvml.wait_for_xids(0) == []
    watch = XidWatch(nvml, seen.put_nowait)
    running = asyncio.create_task(watch.run())
    await asyncio.to_thread(admin.ask, "lose", uuid=uuid)
    async with asyncio.timeout(SECONDS):
        assert await seen.get() == Xid(uuid, 79)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert seen.empty()
    nvml.close()
    admin.close()


async def test_a_driver_without_xids_is_logged_once_and_asked_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers, asked_thrice = iter(range(1, 100)), threading.Event()

    class Silent:
        def wait_for_xids(self, _: float) -> list[Xid]:
            if next(answers) == 3:
                asked_thrice.set()
            raise NvmlError("Not Supported")

    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(XidWatch(Silent(), lambda _: None, retry_seconds=0.01).run())  # type: ignore[arg-type]
        assert await asyncio.to_thread(asked_thrice.wait, SECONDS)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [record.getMessage() for record in caplog.records] == ["Xids are not known: Not Supported"]
