"""A GPU that NVML does not reach while it is given back keeps its directory until its compute mode can be restored."""

import pytest

from gpushare.agent.reconcile import daemon_files
from gpushare.api.compute_mode import ComputeMode
from gpushare.mps.layout import GpuDir, gpu_dir
from tests.unit.agent.fake_node import FakeNode


async def given_back_unreached(node: FakeNode, failure: str = "lost") -> GpuDir:
    """GPU-0 has been given back while NVML did not reach it, though it lists the GPU. `failure`: how, as FakeNvml's."""
    await node.serving()
    getattr(node.nvml, failure).add("GPU-0")
    await node.until(lambda: node.readings.inventory.views["GPU-0"].lost)
    node.kube.assign()
    directory = gpu_dir(node.root, "GPU-0")
    await node.until(lambda: "GPU-0" not in node.decided and not directory.wanted.exists())
    assert node.gates() == []
    return directory


def answers(node: FakeNode) -> None:
    """NVML reaches GPU-0 again."""
    node.nvml.lost.clear()
    node.nvml.hanging.clear()
    node.nvml.release.set()


async def restored(node: FakeNode, directory: GpuDir) -> None:
    """GPU-0 has the mode that was found first, and nothing is left of its directory."""
    await node.until(lambda: not directory.path.exists())
    assert node.nvml.modes["GPU-0"] is ComputeMode.DEFAULT


@pytest.mark.parametrize("failure", ["lost", "hanging"])
async def test_an_unreached_gpu_gets_its_mode_back_once_nvml_reaches_it(node: FakeNode, failure: str) -> None:
    directory = await given_back_unreached(node, failure)
    assert node.nvml.modes["GPU-0"] is ComputeMode.EXCLUSIVE_PROCESS
    assert [path.name for path in directory.path.iterdir()] == ["original-compute-mode"]
    await node.ticks(3)
    assert directory.original_mode.exists()
    answers(node)
    await restored(node, directory)


async def test_an_unreached_gpu_gets_its_mode_back_from_the_next_agent(
    node: FakeNode,
) -> None:
    directory = await given_back_unreached(node)
    await node.stop()
    node.nvml.unloaded = True
    node.start()
    await node.ticks(3)
    assert directory.original_mode.exists(), "nothing is known of the GPU"
    node.nvml.unloaded = False
    await node.until(lambda: node.readings.inventory.views)
    await node.ticks(3)
    assert directory.original_mode.exists()
    answers(node)
    await restored(node, directory)


async def test_an_unreached_gpu_is_taken_again_with_the_mode_found_first(
    node: FakeNode,
) -> None:
    directory = await given_back_unreached(node)
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    await node.until(lambda: "NVML does not reach this GPU" in node.daemon().get("message", ""))
    answers(node)
    await node.until(lambda: node.daemon().get("ready"))
    assert daemon_files.original_mode(directory) is ComputeMode.DEFAULT
    node.kube.assign()
    await restored(node, directory)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_of_a_gpu_that_nvml_does_not_list_any_more_nothing_is_left(node: FakeNode, when: str) -> None:
    if when == "after":
        directory = await given_back_unreached(node)
        node.nvml.unplug(0)
    else:
        await node.serving()
        directory = gpu_dir(node.root, "GPU-0")
        node.nvml.unplug(0)
        await node.until(lambda: node.readings.inventory.views["GPU-0"].lost)
        node.kube.assign()
    await node.until(lambda: not directory.path.exists())
