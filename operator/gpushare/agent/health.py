"""Whether the agent does its work, for the kubelet's probes and for the node's heartbeat."""

from collections.abc import Callable

from gpushare.agent.reporting import StatusReporter
from gpushare.agent.tick import Tick

ALIVE_SECONDS = 60.0
"""A tick that is overdue for so long does not come any more."""
LATE_SECONDS = 10.0
"""While a tick is overdue for so long, no heartbeat says that the agent works."""
REFUSED_SECONDS = 15.0
"""While the API server takes no status for so long, no heartbeat says that what it has is current."""


class AgentHealth:
    def __init__(self, tick: Tick, status: StatusReporter, clock: Callable[[], float]) -> None:
        """`clock`: CLOCK_BOOTTIME seconds."""
        self._tick = tick
        self._status = status
        self._clock = clock

    def unhealthy(self) -> str | None:
        """Why the agent should be restarted; None: it works."""
        age = self._clock() - self._tick.ended_at
        return f"the last tick was {age:.0f} s ago" if age > ALIVE_SECONDS else None

    def unready(self) -> str | None:
        """What is missing before the agent has reported once, or why what it reports does not arrive; None: nothing.

        It is no reason to start it again: it goes on serving its node, and whatever is wrong on the way is found by
        each request anew.
        """
        since, now = self._status.unreported_since, self._clock()
        if not self._status.reported:
            return "has not yet seen the API, the GPUs and the kubelet"
        if since is not None and now - since > REFUSED_SECONDS:
            return f"the API server has taken no status for {now - since:.0f} s"
        return None

    def not_working(self) -> str | None:
        """Why departures may go unseen or the status be old; None: the agent does its work."""
        age = self._clock() - self._tick.ended_at
        return f"the last tick was {age:.0f} s ago" if age > LATE_SECONDS else self.unready()
