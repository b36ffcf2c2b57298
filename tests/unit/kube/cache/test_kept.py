from typing import Any

import pytest

from gpushare.kube.cache.kept import kept_share
from gpushare.kube.cache.store import Store
from gpushare.kube.client import Object


def share(version: int, used: int = 0, **spec: Any) -> Object:
    return {
        "metadata": {"name": "a", "uid": "s", "generation": 1, "resourceVersion": str(version)},
        "spec": spec,
        "status": {"slots": {"total": 8, "used": used}, "gpuMemoryMib": 143155},
    }


@pytest.mark.parametrize(("later", "woken"), [(share(2, used=3), 0), (share(2, wholeGpus={}), 1)])
def test_of_a_share_s_changes_those_of_its_counts_alone_wake_nobody(later: Object, woken: int) -> None:
    calls: list[None] = []
    store = Store[Object](kept_share, lambda: calls.append(None))
    store.put(share(1))
    before = len(calls)
    store.put(later)
    assert len(calls) - before == woken
