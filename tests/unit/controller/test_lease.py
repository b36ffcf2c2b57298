"""One active replica: who works, who waits, and what happens when the Lease is lost."""

import asyncio
import copy
from typing import Any

import pytest

from gpushare.kube import lease
from gpushare.kube.client import KubeError, Object, Resource
from gpushare.kube.lease import LeaderElectionLostError, lead


class LeaseKube:
    """Holds one Lease, with optimistic locking. `broken`: every call fails as if the connection were gone."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.broken = False

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        self._check()
        if self.lease is None:
            raise KubeError(404, "NotFound", name)
        return copy.deepcopy(self.lease)

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        self._check()
        if self.lease is not None:
            raise KubeError(409, "AlreadyExists", "it is there")
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = "1"
        return self.lease

    async def patch(self, resource: Resource, name: str, body: Object, **_: Any) -> Object:
        self._check()
        assert self.lease is not None
        version = self.lease["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise KubeError(409, "Conflict", "somebody was faster")
        self.lease["spec"] |= body["spec"]
        self.lease["metadata"]["resourceVersion"] = str(int(version) + 1)
        return self.lease

    def _check(self) -> None:
        if self.broken:
            raise OSError("connection refused")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 3)
    monkeypatch.setattr(lease, "RENEW_SECONDS", 2)
    monkeypatch.setattr(lease, "RETRY_SECONDS", 1)


def replica(kube: LeaseKube, name: str, work: Any) -> "asyncio.Task[None]":
    return asyncio.create_task(lead(kube, namespace="ns", name="l", identity=name, work=work))  # type: ignore[arg-type]


async def test_the_second_replica_works_only_once_the_first_has_given_the_lease_back() -> None:
    kube, log, end = LeaseKube(), [], asyncio.Event()

    async def first() -> None:
        log.append("a starts")
        await end.wait()
        log.append("a ends")

    async def second() -> None:
        log.append("b starts")

    one = replica(kube, "a", first)
    await asyncio.sleep(0.1)
    two = replica(kube, "b", second)
    await asyncio.sleep(1.5)
    assert log == ["a starts"]
    end.set()
    await asyncio.wait_for(asyncio.gather(one, two), 5)
    assert log == ["a starts", "a ends", "b starts"]
    assert kube.lease is not None
    assert kube.lease["spec"]["holderIdentity"] is None


async def test_a_lease_that_cannot_be_renewed_ends_the_work() -> None:
    kube, cancelled = LeaseKube(), asyncio.Event()

    async def work() -> None:
        kube.broken = True
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(LeaderElectionLostError, match="could not be renewed for 2 s"):
        await asyncio.wait_for(replica(kube, "a", work), 10)
    assert cancelled.is_set()


async def test_what_the_work_raises_comes_through() -> None:
    async def work() -> None:
        raise LookupError("a bug")

    with pytest.raises(LookupError):
        await asyncio.wait_for(replica(LeaseKube(), "a", work), 5)


async def test_an_api_server_that_is_away_is_waited_for() -> None:
    kube, done = LeaseKube(), asyncio.Event()
    kube.broken = True

    async def work() -> None:
        done.set()

    task = replica(kube, "a", work)
    await asyncio.sleep(0.2)
    kube.broken = False
    await asyncio.wait_for(task, 5)
    assert done.is_set()


async def test_a_holder_that_died_is_followed_once_its_lease_is_over() -> None:
    kube, done = LeaseKube(), asyncio.Event()
    times = {"acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z"}
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 3, **times}
    kube.lease = {"metadata": {"name": "l", "resourceVersion": "7"}, "spec": spec}

    async def work() -> None:
        done.set()

    task = replica(kube, "a", work)
    await asyncio.sleep(2.5)
    assert not done.is_set(), "it may still be alive: only our own clock counts"
    await asyncio.wait_for(task, 5)
    assert done.is_set()
