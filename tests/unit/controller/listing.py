"""The cache filled by lists alone, as if every watch had just begun."""

from typing import Any

from gpushare.controller.reconcile import Reconciler
from gpushare.controller.resync import read_once


async def relist(kube: Any, reconciler: Reconciler) -> None:
    for watch in reconciler.cache.watches(kube, "gpushare-system"):
        await watch.list_once()
    await read_once(kube, reconciler.cache)
