"""Which of the free slots a container should get: the kubelet asks, and takes the answer as a wish. Pure."""

from collections.abc import Collection

from gpushare.api import names


def preferred_slots(available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
    """`size` device ids, each from the GPU with most free ids left, so that clients spread over a share's GPUs.

    Those that must be included come first, whatever else is asked. Fewer than `size` when there are no more. Never an
    error, which would fail the pod: an id of another form counts as a GPU of its own.
    """
    chosen = list(dict.fromkeys(must_include))
    free: dict[str, list[tuple[int, str]]] = {}
    for device_id in set(available).difference(chosen):
        gpu, slot = _place(device_id)
        free.setdefault(gpu, []).append((slot, device_id))
    for slots in free.values():
        slots.sort(reverse=True)
    while len(chosen) < size and free:
        gpu = min(free, key=lambda name: (-len(free[name]), name))
        chosen.append(free[gpu].pop()[1])
        if not free[gpu]:
            del free[gpu]
    return chosen


def _place(device_id: str) -> tuple[str, int]:
    try:
        return names.parse_slot_id(device_id)
    except ValueError:
        return device_id, 0
