"""What a node's GPUs do with a pod that the scheduler has sent there. Pure.

Slots: the kubelet asks our device plugin which of the free ids it prefers, and takes those: `preferred_slots` is the
agent's own function, with the share's placement. Claims: the scheduler's allocator takes the first device of the node's
ResourceSlice with room; the slice is made by the agent's own functions, and amounts are rounded up by the policy in it.
Whole GPUs are alike.
"""

from collections.abc import Mapping
from functools import cache
from typing import Protocol

from gpushare.agent.dra.slices import device, resource_slice
from gpushare.agent.kubelet.listing import preferred_slots
from gpushare.api import names
from gpushare.api.gpushare import GpuShare, Placement
from gpushare.controller.claims.views import devices as read_devices
from gpushare.nvml.types import GpuInfo
from gpushare.planner.pending import Capacity

SHARE = "parts"
PER_GPU = 20
GPU_MIB = 81920


class NodeGpus(Protocol):
    """`in_use`: GPUs with at least one pod."""

    in_use: int

    def take(self, units: int) -> object:
        """Returns what `give_back` wants."""
        ...

    def give_back(self, taken: object) -> None: ...

    def room(self) -> int:
        """The most units that one pod can get."""
        ...


class WholeGpus:
    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self.in_use = 0

    def take(self, units: int) -> object:
        self.in_use += units
        return units

    def give_back(self, taken: object) -> None:
        assert isinstance(taken, int)
        self.in_use -= taken

    def room(self) -> int:
        return self._gpus - self.in_use


class SlotGpus:
    def __init__(self, gpus: int, per_gpu: int, placement: Placement) -> None:
        self._placement = placement
        self._available = {names.slot_id(f"GPU-{gpu}", slot) for gpu in range(gpus) for slot in range(per_gpu)}
        self._held = [0] * gpus
        self.in_use = 0

    def take(self, units: int) -> object:
        ids = preferred_slots(self._available, (), units, self._placement)
        self._available.difference_update(ids)
        for device_id in ids:
            self._count(device_id, 1)
        return ids

    def give_back(self, taken: object) -> None:
        assert isinstance(taken, list)
        self._available.update(taken)
        for device_id in taken:
            self._count(device_id, -1)

    def room(self) -> int:
        return len(self._available)

    def held(self) -> list[int]:
        """Slots in use of each GPU."""
        return list(self._held)

    def _count(self, device_id: str, change: int) -> None:
        gpu = int(names.parse_slot_id(device_id)[0].removeprefix("GPU-"))
        before, after = self._held[gpu], self._held[gpu] + change
        self._held[gpu] = after
        self.in_use += (after > 0) - (before > 0)


class ClaimGpus:
    """Units are percent of a GPU's threads. Memory is asked in the same proportion, so it never runs out first."""

    def __init__(self, gpus: int) -> None:
        self._whole = claim_capacity()[names.CAPACITY_THREADS].value
        self._left = [self._whole] * gpus
        self.in_use = 0

    def take(self, units: int) -> object:
        gpu = next(number for number, left in enumerate(self._left) if left >= units)
        self.in_use += self._left[gpu] == self._whole
        self._left[gpu] -= units
        return gpu, units

    def give_back(self, taken: object) -> None:
        assert isinstance(taken, tuple)
        gpu, units = taken
        self._left[gpu] += units
        self.in_use -= self._left[gpu] == self._whole

    def room(self) -> int:
        return max(self._left)


@cache
def claim_capacity() -> Mapping[str, Capacity]:
    """What the agent's ResourceSlice offers of one GPU, as the operator reads it."""
    share = GpuShare.model_validate(
        {
            "metadata": {"name": SHARE, "uid": "00000000-0000-0000-0000-000000000000"},
            "spec": {
                "delivery": "ResourceClaim",
                "clients": {
                    "perGpu": PER_GPU,
                    "threads": {"default": 10, "max": 100},
                    "memory": {"default": "1Gi", "max": f"{GPU_MIB}Mi"},
                },
            },
        }
    )
    gpu = GpuInfo("GPU-0", 0, 0, "model", GPU_MIB, 132, "9.0", None, False)
    published = device(gpu, share, None)
    assert published is not None
    (offered,) = read_devices(resource_slice("node", "uid", [published]))
    return offered.capacity


def claimed_percent(milli: int) -> int:
    """What a claim for thousandths of a GPU takes of its threads."""
    return claim_capacity()[names.CAPACITY_THREADS].consumed_by(-(-milli // 10))
