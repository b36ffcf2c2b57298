"""Blocking calls off the event loop, with a time limit that holds even when the call never returns.

Guarantees: a caller has at most one call under way; while one hangs, later ones are refused at once. A call into the
driver cannot be cancelled, so a hanging one keeps its thread: a daemon thread, which does not keep the process from
ending. One that reads files (`bounded_read`) reads no more of them once its time is over.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from gpushare.process.bounded_read import reading_until
from gpushare.process.threads import start_thread

P = ParamSpec("P")
T = TypeVar("T")


class HungError(Exception):
    """The call did not return in time, an earlier one of the same caller still hangs, or there is no thread for it."""


class BlockingCaller:
    """Makes one blocking call at a time, each in a thread of its own."""

    def __init__(self, name: str, seconds: float) -> None:
        """`name`: of the thread, and in errors. `seconds`: the time limit of each call."""
        self._name = name
        self._seconds = seconds
        self._hanging: asyncio.Future[Any] | None = None
        self._lock = asyncio.Lock()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns or raises what `function` does. HungError: the time is over."""
        async with self._lock:
            if self._hanging is not None and not self._hanging.done():
                raise HungError(f"{self._name}: an earlier call still hangs")
            future = self._start(function, *args, **kwargs)
            # Not asyncio.wait_for: Python 3.11's can swallow a cancellation that comes as the call returns.
            try:
                async with asyncio.timeout(self._seconds):
                    return await asyncio.shield(future)
            except TimeoutError:
                if future.done():
                    return future.result()
                self._hanging = future
                raise HungError(f"{self._name}: no answer within {self._seconds:g} s") from None

    def _start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        # Nobody awaits an outcome after the time limit: asyncio must not log it as never retrieved.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        deadline = time.monotonic() + self._seconds

        def body() -> None:
            result, error = None, None
            try:
                with reading_until(deadline):
                    result = function(*args, **kwargs)
            except BaseException as caught:  # noqa: BLE001 - handed to the awaiting task
                error = caught
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, error)

        try:
            start_thread(body, name=self._name)
        except OSError as error:
            raise HungError(f"{self._name}: no thread for the call: {error.strerror}") from error
        return future
