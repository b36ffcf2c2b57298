"""Which whole GPUs one container gets of those that are free: GPUs that are near each other. Pure."""

from collections.abc import Collection, Mapping

from gpushare.nvml.types import GpuInfo


def preferred_gpus(
    available: Collection[str], must_include: Collection[str], size: int, infos: Mapping[str, GpuInfo]
) -> list[str]:
    """`size` device ids, each a GPU's UUID: on one NUMA node where they fit, then of neighbouring index.

    The kubelet takes the answer as a wish. Those of `must_include` come first, even beyond `size`. Of the NUMA nodes on
    which they fit, the one with fewest free GPUs, so that larger requests fit later. Fewer than `size` when there are
    no more. Never an error, which would fail the pod: a GPU that NVML does not show comes last.
    """
    chosen = list(dict.fromkeys(must_include))
    while len(chosen) < size:
        free = set(available).difference(chosen)
        if not free:
            break
        chosen.append(min(free, key=lambda uuid: _cost(uuid, chosen, free, size - len(chosen), infos)))
    return chosen


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
