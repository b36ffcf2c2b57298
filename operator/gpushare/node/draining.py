"""When a GPU is idle for good: free slots withdrawn, confirmed by the kubelet, and no slot held. Pure.

The order proves it. Free slots are withdrawn; then a reading of the kubelet begins that asks first what can be
allocated and then what is held. Where the first names no slot of the GPU, none can be allocated any more, so the second
is final. An allocation that this reading may have missed is promised, and a promised slot is never idle.

Of claims the operator knows which are allocated, and waits for those; here it counts what is prepared, and that the
scheduler has had the time to see that the GPU is closed.
"""

from gpushare.api.gpunode import ShareName, Uuid
from gpushare.node.holdings import KubeletView, Slots

SCHEDULER_SECONDS = 5.0
"""A scheduler that saw the GPU open until it was closed has written its allocation by then, or will fail to."""


def idle(share: ShareName, uuid: Uuid, withdrawn_at: float | None, view: KubeletView | None, promised: Slots) -> bool:
    """`withdrawn_at`: since when no free slot is offered, on the clock of `view.started`; None when one still is."""
    if withdrawn_at is None or view is None or view.started <= withdrawn_at:
        return False
    return not (view.allocatable.get((share, uuid)) or view.holding(share, uuid) or promised)


def unclaimed(closed_since: float | None, now: float, prepared: Slots) -> bool:
    """The same for a GPU that claims are allocated of. `closed_since`: when the API's slice was first seen so."""
    return closed_since is not None and now - closed_since >= SCHEDULER_SECONDS and not prepared
