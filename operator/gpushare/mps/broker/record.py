"""What the broker tells the agent of one GPU: broker.json, written at least every 2 s, and when more than clients'
activity changed.

When a client arrived is kept as long as it lives, also by the next broker; of those that have ended the latest are
kept, as far as there is room.
"""

import logging
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.broker.admission import AttachDenied
from gpushare.mps.files import READABLE, Read, read_model, write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import (
    MAX_ARRIVALS,
    MAX_REFUSALS,
    MAX_STOPPING,
    Arrival,
    AttachRefusal,
    BrokerState,
    ClientActivity,
    PlacesInUse,
    QueuedContainer,
    RefusedAttach,
    StoppingContainer,
    UnattachedClient,
    WaitTimes,
)
from gpushare.process.procfs import TICKS_PER_SECOND, Owner
from gpushare.process.restarts import NEVER, Restarts

LOG = logging.getLogger(__name__)
WRITE_SECONDS = 2.0
AGAIN_SECONDS = 10.0
LOG_SECONDS = 60.0
"""A refusal that comes again and again is logged so often."""
FAILURES_IN_A_ROW = 3
"""After so many attaches that failed, and none that did not, nobody can attach."""
FAILING_SECONDS = 30.0
"""So long after the latest of them containers may start again, which alone shows whether they can attach."""

_Key = tuple[str, str, RefusedAttach]


class BrokerRecord:
    """`problem`: why nobody can attach; empty otherwise, and while attaches alone show it."""

    def __init__(
        self,
        gpu: GpuDir,
        clock: Callable[[], float],
        living: Callable[[], Mapping[int, int]],
        restarts: Restarts = NEVER,
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds. `living`: as `AttachedClients.living`."""
        self.listening = False
        self.problem = ""
        self.waited = 0
        self._restarts = restarts
        self.unattached: list[UnattachedClient] = []
        self.without_pages: list[UnattachedClient] = []
        self.activity: list[ClientActivity] = []
        self.places: PlacesInUse | None = None
        self.queue: list[QueuedContainer] = []
        self.waiting = 0
        self.waits = WaitTimes()
        self.without_place: list[UnattachedClient] = []
        self._gpu = gpu
        self._clock = clock
        self._living = living
        self._restored = False
        self._attached = 0
        self._refused = self._abandoned = 0
        self._failures: list[float] = []
        """When the latest attaches in a row failed."""
        self._failed_with = ""
        self._logged: dict[_Key, float] = {}
        self._arrivals: list[Arrival] = []
        self._refusals: dict[_Key, AttachRefusal] = {}
        self._stopping: dict[str, StoppingContainer] = {}
        """By the runtime's id of the container."""
        self._written: BrokerState | None = None
        self._problems = LogOnChange(LOG)

    def restore(self) -> Read[BrokerState] | None:
        """Takes over from the broker before this one, once: the arrivals of clients that live, and who had asked for no
        pages. Returns what that one wrote; None: there was none, or that was done before.
        """
        if self._restored:
            return None
        self._restored = True
        read = read_model(self._gpu.broker_state, BrokerState)
        before = read.value
        if before is not None:
            living = self._living()
            # A PID that was given to a later process is not the one that arrived.
            known = [arrival for arrival in before.arrivals if arrival.pid in living]
            self._arrivals = [arrival for arrival in known if arrival.at * TICKS_PER_SECOND >= living[arrival.pid]]
            self.without_pages = before.without_pages
        return None if read.absent else read

    def arrived(self, pid: int, owner: Owner, container: str, *, new: bool) -> None:
        """A connection attached. `new`: the first one of its process."""
        self._attached += 1
        self._failures = []
        if new:
            arrival = Arrival(pid=pid, pod_uid=owner.pod_uid, container=container, at=self._clock())
            self._arrivals = [*self._with_room(), arrival]

    def _with_room(self) -> list[Arrival]:
        """The arrivals without one where the list is full: the oldest of those that have ended."""
        if len(self._arrivals) < MAX_ARRIVALS:
            return self._arrivals
        living = self._living()
        ended = next((at for at, arrival in enumerate(self._arrivals) if arrival.pid not in living), 0)
        return [*self._arrivals[:ended], *self._arrivals[ended + 1 :]]

    def refused(self, pid: int, refused: AttachDenied) -> None:
        """Logged for each container and reason, at most once a minute; counted always."""
        self._refused += 1
        key = (refused.owner.pod_uid, refused.owner.container_id, refused.reason)
        before = self._refusals.pop(key, None)
        if self._clock() - self._logged.get(key, -LOG_SECONDS) >= LOG_SECONDS:
            self._logged[key] = self._clock()
            LOG.warning("GPU %s: PID %d is refused: %s: %s", self._gpu.uuid, pid, refused.reason, refused.message)
        if len(self._refusals) >= MAX_REFUSALS:
            forgotten = next(iter(self._refusals))
            del self._refusals[forgotten]
            self._logged.pop(forgotten, None)
        self._refusals[key] = AttachRefusal(
            reason=refused.reason,
            pod_uid=refused.owner.pod_uid,
            container=refused.container,
            container_id=refused.owner.container_id,
            message=refused.message[:512],
            count=before.count + 1 if before else 1,
            at=self._clock(),
        )

    def failed(self, pid: int, refused: AttachDenied) -> None:
        """The same, of an attach that failed by no fault of its process: others may fare no better."""
        self._failures = [*self._failures, self._clock()][-FAILURES_IN_A_ROW:]
        self._failed_with = refused.message
        self.refused(pid, refused)

    def stopping(self, owner: Owner, container: str) -> None:
        """The container's preStop hook is run. One that says so again and again is written down every AGAIN_SECONDS."""
        now, before = self._clock(), self._stopping.get(owner.container_id)
        if before is not None and now - before.at < AGAIN_SECONDS:
            return
        self._stopping.pop(owner.container_id, None)
        if len(self._stopping) >= MAX_STOPPING:
            del self._stopping[next(iter(self._stopping))]
        self._stopping[owner.container_id] = StoppingContainer(
            pod_uid=owner.pod_uid, container=container, container_id=owner.container_id, at=now
        )
        self.write()

    def abandoned(self) -> None:
        """A process hung up in mid-attach by itself, or ended."""
        self._abandoned += 1

    def _problem(self) -> str:
        if self.problem:
            return self.problem
        failing = len(self._failures) == FAILURES_IN_A_ROW and self._clock() - self._failures[-1] < FAILING_SECONDS
        return f"attaches fail: {self._failed_with}" if failing else ""

    def write(self) -> None:
        state = BrokerState(
            uuid=self._gpu.uuid,
            heartbeat=self._clock(),
            listening=self.listening,
            attached=self._attached,
            refused=self._refused,
            abandoned=self._abandoned,
            restarts=self._restarts.count,
            last_end=self._restarts.last_end,
            waited=self.waited,
            problem=self._problem()[:512],
            arrivals=self._arrivals,
            refusals=list(self._refusals.values()),
            stopping=list(self._stopping.values()),
            unattached=self.unattached,
            without_pages=self.without_pages,
            activity=self.activity,
            places=self.places,
            queue=self.queue,
            waiting=self.waiting,
            waits=self.waits,
            without_place=self.without_place,
        )
        if not self._is_due(state):
            return
        try:
            write_model(self._gpu.broker_state, state, READABLE)
            self._written = state
            self._problems.clear("state")
        except OSError as error:
            name = self._gpu.broker_state.name
            self._problems.log("GPU %s: %s cannot be written: %s", self._gpu.uuid, name, error, key="state")

    def _is_due(self, state: BrokerState) -> bool:
        before = self._written
        if before is None or state.heartbeat - before.heartbeat >= WRITE_SECONDS:
            return True
        return state != replace(before, heartbeat=state.heartbeat, activity=state.activity)
