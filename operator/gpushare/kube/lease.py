"""One active replica: work that runs only while a Lease is held.

Guarantees: `lead` starts the work once the Lease is ours, and raises LeaderElectionLostError as soon as it could not
be renewed for RENEW_SECONDS: 10 seconds before another replica may take it. When the work ends by itself the Lease is
given back, so that the next replica need not wait for it to expire. Failures of the API server while waiting are
retried for ever.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.baselock import BaseLock

from gpushare.kube.client import API_ERRORS, Kube, KubeError, Object, Resource

LOG = logging.getLogger(__name__)
LEASES = Resource("coordination.k8s.io", "v1", "leases")

# Renewing is one write each RETRY_SECONDS for as long as we live, so it is rarer than the usual 2 s; the price is that
# a replica that dies without giving the Lease back is followed after LEASE_SECONDS + RETRY_SECONDS at most.
LEASE_SECONDS = 30
RENEW_SECONDS = 20
RETRY_SECONDS = 5
CALL_SECONDS = 3.0


Work = Callable[[], Coroutine[Any, Any, None]]


class LeaderElectionLostError(Exception):
    """Another replica may hold the Lease by now: stop writing at once."""


async def lead(kube: Kube, *, namespace: str, name: str, identity: str, work: Work) -> None:
    """Waits for the Lease, then runs `work` to its end. Raises LeaderElectionLostError, or what `work` raises."""
    leading = asyncio.Event()

    async def started() -> None:
        leading.set()

    lock = _Lock(kube, namespace, name, identity)
    election = LeaderElection(Config(lock, LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS, started, None))
    elector = asyncio.create_task(election.run(), name="lease")
    tasks: list[asyncio.Task[Any]] = [elector]
    try:
        waiter = asyncio.create_task(leading.wait(), name="lease wait")
        tasks.append(waiter)
        await _first(waiter, elector)
        worker = asyncio.create_task(work(), name="leader's work")
        tasks.append(worker)
        watchdog = asyncio.create_task(lock.expired(), name="lease watchdog")
        tasks.append(watchdog)
        if await _first(worker, elector, watchdog) is not worker:
            raise LeaderElectionLostError(f"lease {namespace}/{name} could not be renewed for {RENEW_SECONDS} s")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await _give_back(kube, namespace, name, identity)


async def _first(*tasks: asyncio.Task[Any]) -> asyncio.Task[Any]:
    """The one that ends first, by order where several did; its exception is raised."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    ended = next(task for task in tasks if task in done)
    ended.result()
    return ended


async def _give_back(kube: Kube, namespace: str, name: str, identity: str) -> None:
    """Best effort: without it the next replica waits for the Lease to expire."""
    try:
        lease = await kube.get(LEASES, name, namespace)
        if lease.get("spec", {}).get("holderIdentity") != identity:
            return
        body = {
            "metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]},
            "spec": {"holderIdentity": None},
        }
        await kube.patch(LEASES, name, body, manager=identity, namespace=namespace)
    except API_ERRORS as error:
        LOG.warning("lease %s/%s not given back: %s", namespace, name, error)


class _Lock(BaseLock):  # type: ignore[misc]
    """The Lease as the library's election sees it. A call that fails in whatever way counts as refused, not as the end.

    The library's own LeaseLock is not used: its create is refused by its own client (37.0: `pretty=True` is no string)
    and neither time limits nor broken connections are its concern.
    """

    def __init__(self, kube: Kube, namespace: str, name: str, identity: str) -> None:
        super().__init__(name, namespace, identity)
        self._kube = kube
        self._version = ""
        self._written = time.monotonic()

    async def expired(self) -> None:
        """Returns once RENEW_SECONDS have passed since the last success.

        The election itself counts from the beginning of an attempt and looks only after its pauses: too late.
        """
        while (left := self._written + RENEW_SECONDS - time.monotonic()) > 0:  # noqa: ASYNC110 - it waits for time
            await asyncio.sleep(left)

    async def get(self, name: str, namespace: str) -> tuple[bool, LeaderElectionRecord | ApiException]:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                lease = await self._kube.get(LEASES, name, namespace)
        except KubeError as error:
            # The election creates the Lease only where the body of the exception says 404.
            refused = ApiException(status=error.status, reason=str(error))
            refused.body = json.dumps({"code": error.status})
            return False, refused
        except API_ERRORS as error:
            return False, ApiException(status=0, reason=f"{type(error).__name__}: {error}")
        self._version = lease["metadata"]["resourceVersion"]
        return True, _record(lease.get("spec") or {})

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name},
            "spec": _spec(election_record),
        }
        return await self._write(self._kube.create(LEASES, lease, namespace=namespace))

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        """Refused when somebody else has written since the last `get`."""
        body = {"metadata": {"resourceVersion": self._version}, "spec": _spec(updated_record)}
        return await self._write(self._kube.patch(LEASES, name, body, manager=self.identity, namespace=namespace))

    async def _write(self, call: Awaitable[Object]) -> bool:
        asked = time.monotonic()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await call
        except API_ERRORS as error:
            LOG.warning("lease %s/%s not written: %s", self.namespace, self.name, error or type(error).__name__)
            return False
        self._written = asked
        return True


def _record(spec: Object) -> LeaderElectionRecord:
    seconds = spec.get("leaseDurationSeconds")
    return LeaderElectionRecord(
        spec.get("holderIdentity") or None,
        str(seconds) if seconds else None,
        spec.get("acquireTime"),
        spec.get("renewTime"),
    )


def _spec(record: LeaderElectionRecord) -> Object:
    return {
        "holderIdentity": record.holder_identity,
        "leaseDurationSeconds": int(record.lease_duration),
        "acquireTime": _micro_time(record.acquire_time),
        "renewTime": _micro_time(record.renew_time),
    }


def _micro_time(text: str) -> str:
    """The API's MicroTime of what the election writes (local time, without a zone) or of what we read before."""
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
