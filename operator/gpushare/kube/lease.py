"""One active replica: work that runs only while a Lease is held.

Guarantees: `lead` starts the work once the Lease is ours, and raises LeaseLostError as soon as it could not be renewed
for RENEW_SECONDS: 10 seconds before another replica may take it. When the work ends by itself the Lease is given back,
so that the next replica need not wait for it to expire. Failures of the API server while waiting are retried for ever.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import aiohttp
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from gpushare.kube.client import Kube, KubeError, Resource

LOG = logging.getLogger(__name__)
LEASES = Resource("coordination.k8s.io", "v1", "leases")

# Renewing is one write each RETRY_SECONDS for as long as we live, so it is rarer than the usual 2 s; the price is that
# a replica that dies without giving the Lease back is followed after LEASE_SECONDS + RETRY_SECONDS at most.
LEASE_SECONDS = 30
RENEW_SECONDS = 20
RETRY_SECONDS = 10
CALL_SECONDS = 5.0

_TROUBLE = (ApiException, aiohttp.ClientError, TimeoutError, OSError)


class LeaseLostError(Exception):
    """Another replica may hold the Lease by now: stop writing at once."""


async def lead(kube: Kube, *, namespace: str, name: str, identity: str, work: Callable[[], Awaitable[None]]) -> None:
    """Waits for the Lease, then runs `work` to its end. Raises LeaseLostError, or what `work` raises."""
    leading = asyncio.Event()

    async def started() -> None:
        leading.set()

    lock = _PatientLock(name, namespace, identity, kube.api)
    election = LeaderElection(Config(lock, LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS, started, None))
    elector = asyncio.create_task(election.run(), name="lease")
    tasks: list[asyncio.Task[None]] = [elector]
    try:
        await _first(elector, asyncio.create_task(_wait(leading), name="lease wait"))
        LOG.info("%s holds the lease %s/%s", identity, namespace, name)
        worker = asyncio.create_task(_run(work), name="leader's work")
        tasks.append(worker)
        if await _first(elector, worker) is elector:
            raise LeaseLostError(f"lease {namespace}/{name} could not be renewed for {RENEW_SECONDS} s")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await _give_back(kube, namespace, name, identity)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()


async def _first(elector: asyncio.Task[None], other: asyncio.Task[None]) -> asyncio.Task[None]:
    """The one that ends first; its exception is raised."""
    try:
        done, _ = await asyncio.wait({elector, other}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        other.cancel()
        raise
    ended = other if other in done else elector
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
    except (KubeError, aiohttp.ClientError, TimeoutError, OSError) as error:
        LOG.warning("lease %s/%s not given back: %s", namespace, name, error)


class _PatientLock(LeaseLock):  # type: ignore[misc]
    """The library's lock with a time limit on each call; a broken connection counts as refused, not as the end."""

    async def get(self, name: str, namespace: str) -> tuple[bool, LeaderElectionRecord | Exception | None]:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await super().get(name, namespace)  # type: ignore[no-any-return]
        except _TROUBLE as error:
            return False, ApiException(status=0, reason=f"{type(error).__name__}: {error}")

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await super().create(name, namespace, election_record)  # type: ignore[no-any-return]
        except _TROUBLE as error:
            LOG.warning("lease %s/%s not created: %s", namespace, name, error)
            return False

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await super().update(name, namespace, updated_record)  # type: ignore[no-any-return]
        except _TROUBLE as error:
            LOG.warning("lease %s/%s not renewed: %s", namespace, name, error)
            return False
