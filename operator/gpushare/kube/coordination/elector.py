"""One active replica: work that runs only while a Lease is held, elected as client-go does it.

Guarantees: `lead` starts the work once the Lease is ours. It cancels the work and raises LeaseLostError as soon as
another replica holds the Lease, or after `renew_seconds` without a renewal, counted from the start of the last request
that succeeded: `lease_seconds - renew_seconds` before another replica may take it, provided that the event loop runs.
When the work ends by itself the Lease is given back, so that the next replica need not wait for it to expire. While
waiting for the Lease, failures of the API server are retried for ever. Whether another replica's Lease has expired is
decided by our own monotonic clock alone, so the clocks of nodes may differ.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Literal

from gpushare.kube.client import API_ERRORS, Kube, KubeError, Object
from gpushare.kube.coordination.lease import LEASE_API_VERSION, LeaseSpec
from gpushare.kube.resources import LEASES
from gpushare.messages.log_on_change import LogOnChange
from gpushare.process.event_loop import within

LOG = logging.getLogger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]
Outcome = Literal["held", "taken", "failed"]
"""The end of one attempt: the Lease is ours, somebody else's, or nobody knows."""


class LeaseLostError(Exception):
    """Another replica may hold the Lease by now: stop writing at once."""


@dataclass(frozen=True, slots=True)
class Timing:
    """client-go's leaseDuration, renewDeadline and retryPeriod, and a time limit for each attempt.

    We renew for as long as we live, so less often than client-go's 2 s: by one write each `retry_seconds`. The price: a
    replica that dies without giving the Lease back is followed after lease_seconds + retry_seconds at most. An attempt
    that failed is tried again `failed_seconds` later: an API server under load may answer late, or not each time.
    """

    lease_seconds: float = 30.0
    renew_seconds: float = 20.0
    retry_seconds: float = 5.0
    attempt_seconds: float = 7.0
    failed_seconds: float = 1.0


class Elector:
    """One replica's part in the election for one Lease. `identity` must differ between replicas."""

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`monotonic` in seconds; `sleep` as asyncio.sleep, by the same clock."""
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timing = timing or Timing()
        self._monotonic = monotonic
        self._sleep = sleep
        self._version = ""
        """The resourceVersion that our next update must meet; empty: read the Lease first."""
        self._observed: LeaseSpec | None = None
        self._observed_at = 0.0
        """When `_observed` was first seen: its holder renewed it no later than that."""
        self._renewed_at: float | None = None
        """When the last request that renewed it was begun; None while it is not ours."""
        self._problems = LogOnChange(LOG)

    def __str__(self) -> str:
        return f"lease {self._namespace}/{self._name}"

    async def acquire(self) -> None:
        """Returns once the Lease is ours."""
        while await self._attempt(self._timing.attempt_seconds) != "held":
            await self._sleep(self._timing.retry_seconds)
        LOG.info("%s is held by %s", self, self._identity)

    async def keep(self) -> None:
        """Renews the Lease until cancelled. Raises LeaseLostError."""
        pause = self._timing.retry_seconds
        while True:
            await self._sleep(max(0.0, min(pause, self._seconds_left())))
            left = self._seconds_left()
            if left <= 0:
                raise LeaseLostError(f"{self} could not be renewed for {self._timing.renew_seconds:g} s")
            outcome = await self._attempt(min(left, self._timing.attempt_seconds))
            pause = self._timing.retry_seconds if outcome == "held" else self._timing.failed_seconds
            if outcome == "taken":
                raise LeaseLostError(f"{self} was taken by {self._observed.holder if self._observed else 'nobody'}")

    def check(self) -> None:
        """Raises LeaseLostError unless the Lease was renewed within `renew_seconds`. May be called from any thread."""
        if self._renewed_at is None or self._seconds_left() <= 0:
            raise LeaseLostError(f"{self} is not held: nothing may be written")

    async def release(self) -> None:
        """Best effort: without it the next replica waits for the Lease to expire."""
        if not self._version or self._observed is None or self._observed.holder != self._identity:
            return
        body = {"metadata": {"resourceVersion": self._version}, "spec": {"holderIdentity": None}}
        self._version, self._renewed_at = "", None
        try:
            await within(self._timing.attempt_seconds, self._patch(body))
        except API_ERRORS as error:
            LOG.warning("%s not given back: %s", self, error or type(error).__name__)

    def _seconds_left(self) -> float:
        if self._renewed_at is None:
            return 0.0
        return self._renewed_at + self._timing.renew_seconds - self._monotonic()

    async def _attempt(self, seconds: float) -> Outcome:
        began = self._monotonic()
        try:
            async with asyncio.timeout(seconds):
                held = await self._acquire_or_renew()
        except API_ERRORS as error:
            self._version = ""  # a request that timed out may have been carried out all the same
            if not (isinstance(error, KubeError) and error.status == HTTPStatus.CONFLICT):
                self._problems.log("%s can be neither read nor written: %s", self, error or type(error).__name__)
            return "failed"
        self._problems.clear()
        self._renewed_at = began if held else None
        return "held" if held else "taken"

    async def _acquire_or_renew(self) -> bool:
        """False: another replica holds it. Raises API_ERRORS; a conflict means that somebody else wrote first."""
        if self._version:
            try:
                return await self._update()
            except KubeError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise
        lease = await self._kube.find(LEASES, self._name, self._namespace)
        if lease is None:
            self._observe(await self._kube.create(LEASES, self._new_lease(), namespace=self._namespace))
            return True
        self._observe(lease)
        if self._is_held_by_another():
            self._version = ""
            return False
        return await self._update()

    async def _update(self) -> bool:
        body = {"metadata": {"resourceVersion": self._version}, "spec": self._next_spec().wire()}
        self._observe(await self._patch(body))
        return True

    def _observe(self, lease: Object) -> None:
        self._version = lease["metadata"]["resourceVersion"]
        spec = LeaseSpec.of(lease)
        if spec != self._observed:
            self._observed, self._observed_at = spec, self._monotonic()

    def _is_held_by_another(self) -> bool:
        spec = self._observed
        if spec is None or spec.holder in ("", self._identity):
            return False
        return self._monotonic() < self._observed_at + spec.lease_seconds

    def _next_spec(self) -> LeaseSpec:
        now, last = _micro_time(), self._observed
        ours = last is not None and last.holder == self._identity
        return LeaseSpec(
            holder=self._identity,
            lease_seconds=self._timing.lease_seconds,
            acquired=last.acquired if last is not None and ours else now,
            renewed=now,
            transitions=0 if last is None else last.transitions + (not ours),
        )

    def _new_lease(self) -> Object:
        return {
            "apiVersion": LEASE_API_VERSION,
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._next_spec().wire(),
        }

    async def _patch(self, body: Object) -> Object:
        return await self._kube.patch(LEASES, self._name, body, manager=self._identity, namespace=self._namespace)


async def lead(elector: Elector, work: Work) -> None:
    """Waits for the Lease, then runs `work` to its end. Raises LeaseLostError, or what `work` raises."""
    try:
        await elector.acquire()
        worker = asyncio.create_task(work(), name="leader's work")
        keeper = asyncio.create_task(elector.keep(), name="lease")
        try:
            done, _ = await asyncio.wait((worker, keeper), return_when=asyncio.FIRST_COMPLETED)
            (keeper if keeper in done else worker).result()
        finally:
            for task in (worker, keeper):
                task.cancel()
            await asyncio.gather(worker, keeper, return_exceptions=True)
    except LeaseLostError:
        raise
    except BaseException:
        await elector.release()
        raise
    await elector.release()


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
