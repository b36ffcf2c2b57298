"""The compute mode found before a GPU was taken: kept on disk from before it is changed until it is restored."""

from gpushare.agent.gpus.inventory import Inventory
from gpushare.api.gpunode import ComputeMode, Uuid
from gpushare.mps.files import write_text
from gpushare.mps.layout import GpuDir


async def take(inventory: Inventory, uuid: Uuid, directory: GpuDir) -> None:
    """Sets EXCLUSIVE_PROCESS, and remembers what was there unless an earlier attempt did.

    Errors: NvmlError, HungError, OSError; repeating is safe.
    """
    found = await inventory.mode(uuid)
    if not directory.original_mode.exists():
        write_text(directory.original_mode, found.value + "\n")
    if found is not ComputeMode.EXCLUSIVE_PROCESS:
        await inventory.set_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS)


async def restore(inventory: Inventory, uuid: Uuid, directory: GpuDir) -> None:
    """Puts back what was found, where `take` was ever called. A lost GPU has no mode: a reset gives it the default one.

    Errors: NvmlError, HungError.
    """
    original = original_mode(directory)
    view = inventory.views.get(uuid)
    if original is not None and view is not None and not view.lost:
        await inventory.set_mode(uuid, original)


def original_mode(directory: GpuDir) -> ComputeMode | None:
    try:
        return ComputeMode(directory.original_mode.read_text().strip())
    except (OSError, ValueError):
        return None
