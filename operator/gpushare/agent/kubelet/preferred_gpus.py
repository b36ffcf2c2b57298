"""Which whole GPUs one container gets of those that are free: GPUs that are near each other. Pure."""

from collections.abc import Collection, Mapping
from itertools import combinations
from math import comb

from gpushare.nvml.types import GpuInfo

MOST_SETS = 13_000
"""There are so many sets of 8 out of 16; a larger search is left out."""


def preferred_gpus(
    available: Collection[str], must_include: Collection[str], size: int, infos: Mapping[str, GpuInfo]
) -> list[str]:
    """`size` device ids, each a GPU's UUID: joined by NVLink as far as they can be, then on one NUMA node where they
    fit, then of neighbouring index.

    The kubelet takes the answer as a wish. Those of `must_include` come first, even beyond `size`. Of the NUMA nodes on
    which they fit, the one with fewest free GPUs, and of sets that are joined alike one that parts fewest linked GPUs,
    so that larger requests fit later. Fewer than `size` when there are no more. Never an error, which would fail the
    pod: a GPU that NVML does not show comes last. Where NVML shows no link, NUMA nodes alone decide.
    """
    near = _near(available, must_include, size, infos)
    chosen = list(dict.fromkeys(must_include))
    return [*chosen, *_joined(available, chosen, near[len(chosen) :], infos)]


def _near(
    available: Collection[str], must_include: Collection[str], size: int, infos: Mapping[str, GpuInfo]
) -> list[str]:
    """The nearest ones by NUMA node and index."""
    chosen = list(dict.fromkeys(must_include))
    while len(chosen) < size:
        free = set(available).difference(chosen)
        if not free:
            break
        chosen.append(min(free, key=lambda uuid: _cost(uuid, chosen, free, size - len(chosen), infos)))
    return chosen


def _joined(
    available: Collection[str], chosen: Collection[str], near: list[str], infos: Mapping[str, GpuInfo]
) -> list[str]:
    """`near`, or as many others where these are better joined by NVLink with each other and with the `chosen`."""
    free = sorted((infos[uuid] for uuid in set(available) - set(chosen) if uuid in infos), key=lambda gpu: gpu.index)
    known = [infos[uuid] for uuid in chosen if uuid in infos]
    linked = any(gpu.nvlinked for gpu in free)
    if not linked or any(uuid not in infos for uuid in near) or comb(len(free), len(near)) > MOST_SETS:
        return near
    place = {gpu.uuid: 1 << at for at, gpu in enumerate([*known, *free])}
    links = {uuid: sum(bit for other, bit in place.items() if other in infos[uuid].nvlinked) for uuid in place}
    fixed, all_free = sum(place[gpu.uuid] for gpu in known), sum(place[gpu.uuid] for gpu in free)

    def cost(uuids: Collection[str]) -> tuple[int, int, int]:
        """Lower is better: pairs without NVLink (each counted twice), NUMA nodes, links to those that stay free."""
        taken = fixed | sum(place[uuid] for uuid in uuids)
        together = [*(gpu.uuid for gpu in known), *uuids]
        apart = sum(len(together) - 1 - (links[uuid] & taken).bit_count() for uuid in together)
        parted = sum((links[uuid] & all_free & ~taken).bit_count() for uuid in uuids)
        return apart, len({infos[uuid].numa_node for uuid in together}), parted

    best = min(combinations([gpu.uuid for gpu in free], len(near)), key=cost)
    return list(best) if cost(best) < cost(near) else near


def _cost(
    uuid: str, chosen: Collection[str], free: Collection[str], missing: int, infos: Mapping[str, GpuInfo]
) -> tuple[bool, int, bool, int, int, str]:
    """Lower is better: beside the chosen ones, where the missing ones fit, where least else is free, and near."""
    info = infos.get(uuid)
    if info is None:
        return True, 0, True, 0, 0, uuid
    node = info.numa_node
    known = [infos[other] for other in chosen if other in infos]
    apart = sum(other.numa_node != node for other in known)
    beside = sum(other in infos and infos[other].numa_node == node for other in free)
    near = min((abs(other.index - info.index) for other in known), default=0)
    fits = beside >= missing
    return False, apart, not fits, beside if fits else -beside, near * 64 + info.index, uuid
