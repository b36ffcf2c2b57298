"""Blocking calls off the event loop, with a time limit that holds even when the call never returns.

A driver call cannot be cancelled. So each lane has at most one call under way; while one hangs, later ones are refused
at once, and its thread is a daemon thread that cannot keep the process from ending.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class HungError(Exception):
    """The call has not returned in time, or an earlier one on this lane still has not."""


class BlockingCaller:
    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._seconds = seconds
        self._hanging: asyncio.Future[Any] | None = None
        self._turn = asyncio.Lock()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns or raises; HungError once the time is over."""
        async with self._turn:
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
        # An outcome that comes after the time limit has no reader; it must not be logged as forgotten.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def body() -> None:
            result, error = None, None
            try:
                result = function(*args, **kwargs)
            except BaseException as caught:  # noqa: BLE001 - handed to the awaiting task
                error = caught
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=body, name=self._name, daemon=True).start()
        return future
