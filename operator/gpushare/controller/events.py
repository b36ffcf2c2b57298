"""The Events about GpuShares and ResourceClaims that the operator posts."""

from collections.abc import Callable, Sequence

from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.controller.cache.fleet_cache import FleetCache
from gpushare.controller.writes import MANAGER, Note
from gpushare.kube.client import Kube, Object
from gpushare.kube.events.event import Event, reference
from gpushare.kube.events.recorder import EventRecorder
from gpushare.planner.pending import Pending


class FleetEvents:
    def __init__(self, kube: Kube, cache: FleetCache, instance: str, clock: Callable[[], float]) -> None:
        """`instance`: who reports the events. `clock`: seconds, monotonic."""
        self._cache = cache
        self._recorder = EventRecorder(kube, MANAGER, instance, clock)
        self._pending: dict[str, Object] = {}
        """References to the claims that an event was recorded about, by uid."""

    def record(self, note: Note) -> None:
        """An event on the share, unless it is gone."""
        known = self._cache.shares.get(note.share)
        if known is None:
            return
        share = {"metadata": {"name": known.name, "uid": known.uid}}
        regarding = reference(share, names.API_VERSION, "GpuShare")
        self._recorder.record(Event(regarding, note.kind, note.reason, note.action, note.text, happened=True))

    def report_pending(self, pending: Sequence[Pending]) -> None:
        """An event on each claim that fits nowhere, once for each capacity that is short. `pending`: all of them."""
        references = {item.claim.uid: _reference(item) for item in pending}
        for uid in self._pending.keys() - references.keys():
            self._recorder.resolve(self._pending[uid], EventReason.CLAIM_PENDING)
        self._pending = references
        for item in pending:
            regarding = references[item.claim.uid]
            event = Event(regarding, "Warning", EventReason.CLAIM_PENDING, "Schedule", item.message, key=item.key)
            self._recorder.record(event)


def _reference(item: Pending) -> Object:
    namespace, _, name = item.claim.name.partition("/")
    claim = {"metadata": {"namespace": namespace, "name": name, "uid": item.claim.uid}}
    return reference(claim, "resource.k8s.io/v1", "ResourceClaim")
