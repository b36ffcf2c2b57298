"""Device ids that Allocate handed out and that the kubelet may not list yet.

Guarantees: from Allocate on an id counts as held, either here or in the kubelet's list, until its pod has ended. Only
a reading of the kubelet ends a promise, so an unreadable kubelet loses none. An id is free for the kubelet only once it
has forgotten the pod that had it, so a list begun after Allocate that names the id means the new pod.
"""

from collections.abc import Collection, Iterable

PROMISE_SECONDS = 60.0
"""An allocation that is not listed after so long came to nothing: the pod's admission failed."""


class Promises:
    """One entry at most for each id that was ever offered, so this stays small."""

    def __init__(self) -> None:
        self._allocated_at: dict[str, float] = {}

    def add(self, ids: Iterable[str], now: float) -> None:
        """Also for an id that is promised already: it has a new pod, which no earlier reading settles."""
        self._allocated_at.update(dict.fromkeys(ids, now))

    def settle(self, listed: Collection[str], started: float) -> None:
        """`listed`: the ids that containers hold by a reading begun at `started`, on the clock of `add`."""
        self._allocated_at = {
            device_id: at
            for device_id, at in self._allocated_at.items()
            if not settled(at, device_id in listed, started)
        }

    def ids(self) -> frozenset[str]:
        return frozenset(self._allocated_at)


def settled(allocated_at: float, listed: bool, started: float) -> bool:
    """Whether a reading begun at `started`, which lists the id or not, tells all there is to know of an allocation."""
    return started > allocated_at + (0.0 if listed else PROMISE_SECONDS)
