"""The cache filled by lists alone, as if every watch had just begun."""

from gpushare.controller.cache.resync import read_once
from gpushare.controller.reconcile import Reconciler
from tests.unit.fake_kube import FakeKube


async def relist(kube: FakeKube, reconciler: Reconciler) -> None:
    for watch in reconciler.cache.watches(kube, "gpushare-system"):
        await watch.list_once()
    await read_once(kube, reconciler.cache)
