"""The cache filled by lists alone, as if every watch had just begun; and rounds with all their writes."""

from gpushare.controller.cache.resync import read_once
from gpushare.controller.reconcile import Reconciler
from tests.unit.fake_kube import FakeKube


async def relist(kube: FakeKube, reconciler: Reconciler) -> None:
    for watch in reconciler.cache.watches(kube, "gpushare-system"):
        await watch.list_once()
    await read_once(kube, reconciler.cache)


async def once(reconciler: Reconciler) -> float | None:
    """One round to the last answer. Returns the seconds until the next one is due, or None."""
    due = await reconciler.once()
    await reconciler.written()
    retry = reconciler.retry_seconds()
    return min((seconds for seconds in (due, retry) if seconds is not None), default=None)
