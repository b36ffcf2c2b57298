"""The election for a Lease in a thread of its own, so that no load of the work's event loop costs us the Lease.

Guarantees: the Lease is renewed by another event loop and another connection than the work uses. Whoever cannot renew
it stops before another replica may take it, even where the work's event loop hangs: from the end of the renewals on no
write passes `check`, and work that has not ended STOP_SECONDS later is ended with the process. That is sooner than
another replica may begin: `Timing.lease_seconds` - `Timing.renew_seconds` - STOP_SECONDS are left.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress

from gpushare.kube.coordination.elector import Elector, LeaseLostError, Work, lead
from gpushare.process import event_loop
from gpushare.process.event_loop import within

LOG = logging.getLogger(__name__)
STOP_SECONDS = 5.0

Join = Callable[[], AbstractAsyncContextManager[Elector]]
"""Opens a connection for the election, in the event loop that runs it, and closes it at the end."""


class Leadership:
    def __init__(self, join: Join, stop_seconds: float = STOP_SECONDS, end: Callable[[int], object] = os._exit) -> None:
        """`end`: ends the process with this exit code, whatever its threads do."""
        self._join = join
        self._stop_seconds = stop_seconds
        self._end = end
        self._elector: Elector | None = None

    def check(self) -> None:
        """Raises LeaseLostError unless the Lease is ours for now. May be called from any thread."""
        if self._elector is None:
            raise LeaseLostError("the Lease is not ours (yet)")
        self._elector.check()

    async def lead(self, work: Work) -> None:
        """The same as `elector.lead`, in a thread; `work` runs in the caller's event loop."""
        election = _Election(self, work, asyncio.get_running_loop())
        threading.Thread(target=election.run, name="lease", daemon=True).start()
        over = asyncio.wrap_future(election.result)
        try:
            await asyncio.shield(over)
        except asyncio.CancelledError:
            election.cancel()
            await asyncio.wait([over])
            if not over.cancelled():
                over.exception()  # we end anyhow
            raise

    async def elect(self, work: Work) -> None:
        """Runs in the thread of the election."""
        async with self._join() as elector:
            self._elector = elector
            await lead(elector, work)

    async def stopped(self, ended: asyncio.Event) -> None:
        """Waits until the work has ended, or ends the process. Another cancellation, as by SIGTERM, waits for it."""
        waiting = asyncio.create_task(within(self._stop_seconds, ended.wait()))
        while not waiting.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({waiting})
        waiting.exception()  # that the time is over is seen by `ended`
        if not ended.is_set():
            LOG.critical("the work has not ended within %g s after the Lease: ending the process", self._stop_seconds)
            self._end(1)


class _Election:
    """One thread's run. `home`: the event loop of the work."""

    def __init__(self, leadership: Leadership, work: Work, home: asyncio.AbstractEventLoop) -> None:
        self.result: Future[None] = Future()
        self._leadership = leadership
        self._work = work
        self._home = home
        self._cancelled = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def run(self) -> None:
        self.result.set_running_or_notify_cancel()
        try:
            event_loop.run(self._main())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the work's event loop is to raise it
            self.result.set_exception(error)
        else:
            self.result.set_result(None)

    def cancel(self) -> None:
        """Ends the work and gives the Lease back. Called in the event loop of the work."""
        self._cancelled.set()
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the thread's event loop has just ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def _main(self) -> None:
        self._task = asyncio.ensure_future(self._leadership.elect(self._work_at_home))
        self._loop = asyncio.get_running_loop()
        if self._cancelled.is_set():
            self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _work_at_home(self) -> None:
        """The work as the election sees it: begins it in its own event loop, and ends only once it has ended."""
        here, ended = asyncio.get_running_loop(), asyncio.Event()
        started: list[asyncio.Task[None]] = []

        def start() -> None:
            task = self._home.create_task(self._work(), name="work")
            task.add_done_callback(lambda _: here.call_soon_threadsafe(ended.set))
            started.append(task)

        self._home.call_soon_threadsafe(start)
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self._home.call_soon_threadsafe(lambda: [task.cancel() for task in started])
            await self._leadership.stopped(ended)
            raise
        started[0].result()
