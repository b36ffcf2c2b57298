"""Events on the GpuNode about attach brokers that ended by themselves and were started again. Pure."""

from collections.abc import Mapping

from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.kube.events.event import Event
from gpushare.messages.wording import count_of
from gpushare.mps.wire import BrokerState


class BrokerRestarts:
    """Guarantees: what an earlier agent has told is no new occurrence. A broker that its MPS pod started is none."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._seen: dict[Uuid, int] = {}

    def update(self, state: BrokerState, share: ShareName) -> list[Event]:
        """What is new in broker.json."""
        before = self._seen.get(state.uuid)
        self._seen[state.uuid] = state.restarts
        more = state.restarts - (before or 0)
        if more <= 0:  # or one of a container that started anew
            return []
        gpu_node = {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": self._node}
        waited = f"{count_of(state.waited, 'connection')} waited for it meanwhile" if state.waited else "nobody waited"
        note = (
            f"GPU {state.uuid} of GpuShare {share}: the attach broker {state.last_end} and was started again; "
            f"{waited}. Clients that run go on."
        )
        reason, happened = EventReason.BROKER_RESTARTED, before is not None
        return [Event(gpu_node, "Warning", reason, "Attach", note, state.uuid, key=state.uuid, happened=happened)]

    def keep(self, present: Mapping[Uuid, object]) -> None:
        """Forgets every other GPU."""
        self._seen = {uuid: seen for uuid, seen in self._seen.items() if uuid in present}
