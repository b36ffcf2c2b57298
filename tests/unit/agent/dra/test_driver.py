"""The node's slice while shares come and go."""

import asyncio
from dataclasses import replace
from pathlib import Path

from gpushare.agent.dra.claims import ClaimSources
from gpushare.agent.dra.driver import ClaimDelivery
from gpushare.agent.dra.prepared import PreparedClaims
from gpushare.agent.gpus.view import GpuView
from gpushare.api.compute_mode import ComputeMode
from gpushare.kube.client import NODES, RESOURCE_SLICES
from gpushare.nvml.types import GpuProcesses
from tests.unit.agent.conftest import info
from tests.unit.agent.decided_gpus import decided
from tests.unit.agent.dra.objects import share
from tests.unit.fake_kube import FakeKube

SLICE = "n-gpushare.dev"


async def test_a_slice_that_is_written_after_its_share_has_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "plugins_registry").mkdir()
    kube = FakeKube()
    kube.put(NODES, {"metadata": {"name": "n", "uid": "node-1"}})
    sources = ClaimSources("n", PreparedClaims(tmp_path), dict, lambda: True, lambda: None, lambda: None)
    delivery = ClaimDelivery(kube, tmp_path, sources, lambda: 100.0)  # type: ignore[arg-type]
    view = GpuView(info(), ComputeMode.EXCLUSIVE_PROCESS, GpuProcesses((), ()), 100.0)
    try:
        await delivery.offer([replace(decided(share=share()), view=view)])
        await kube.followed(RESOURCE_SLICES)
        publishing = asyncio.create_task(delivery.publish(None, by_cdi=True))
        await kube.until(lambda: "get nodes/n" in kube.requests)
        await delivery.offer(())
        await publishing
        assert kube.has(RESOURCE_SLICES, SLICE), "its write was under way"
        await delivery.offer(())
        await delivery.publish(None, by_cdi=True)
        assert not kube.has(RESOURCE_SLICES, SLICE)
    finally:
        await delivery.close()
