"""What one GPU's supervisor remembers from look to look, and the two back-offs that follow from it. Pure."""

from dataclasses import dataclass, replace

from gpushare.api.gpunode import Limits
from gpushare.mps.control import shown_mib

LONGEST_BACKOFF_SECONDS = 60.0
GOOD_SECONDS = 60.0
"""A daemon that ran so long did start: its end begins a new count."""
FIRST_SERVER_WAIT_SECONDS = 0.5
LONGEST_SERVER_WAIT_SECONDS = 30.0
_MOST_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class Shown:
    """Limits as the daemon reads them back: percent, MiB (floored, see `shown_mib`; None: no limit), priority.

    A server shows no priority of its own: the daemon's default counts for its clients.
    """

    threads: float
    memory_mib: int | None
    priority: int | None = None

    def agrees(self, wanted: Limits) -> bool:
        return (
            self.threads == wanted.threads
            and self.memory_mib in (shown_mib(wanted.memory_mib), wanted.memory_mib)
            and self.priority in (None, wanted.priority)
        )

    def __str__(self) -> str:
        memory = "no memory limit" if self.memory_mib is None else f"{self.memory_mib} MiB"
        priority = "" if self.priority is None else f", priority {self.priority}"
        return f"{self.threads:g} %, {memory}{priority}"


@dataclass(frozen=True, slots=True)
class Past:
    """Times are CLOCK_BOOTTIME seconds. Limits read back count for one daemon and one server.

    `daemon_ran`: at the last look. `…_written`: the limits written last. `trouble`: what the last action ran into.
    """

    daemon_ran: bool = False
    starts: int = 0
    failures: int = 0
    daemon_since: float = 0.0
    daemon_start_at: float = 0.0
    unanswered_since: float | None = None
    server: int | None = None
    server_attempts: int = 0
    server_start_at: float = 0.0
    defaults: Shown | None = None
    defaults_written: Limits | None = None
    server_limits: Shown | None = None
    server_limits_written: Limits | None = None
    read_at: float = 0.0
    trouble: str = ""

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)

    def daemon_runs(self, now: float) -> "Past":
        """A daemon was started or taken over."""
        return replace(self, daemon_ran=True, daemon_since=now)

    def daemon_ended(self, now: float) -> "Past":
        """0, 1, 2, 4, … 60 s until the next start; the count begins anew after a good minute."""
        failures = 1 if self.daemon_ran and now - self.daemon_since >= GOOD_SECONDS else self.failures + 1
        wait = min(2.0 ** min(failures - 2, _MOST_DOUBLINGS), LONGEST_BACKOFF_SECONDS) if failures > 1 else 0.0
        return Past(starts=self.starts, failures=failures, daemon_start_at=now + wait, trouble=self.trouble)

    def unanswered(self, now: float) -> "Past":
        return self if self.unanswered_since is not None else replace(self, unanswered_since=now)

    def server_is(self, pid: int | None) -> "Past":
        """The server seen now; one that is new has yet to show its limits."""
        past = replace(self, server=pid, unanswered_since=None)
        if pid != self.server:
            past = replace(past, server_limits=None, server_limits_written=None)
        return past if pid is None else replace(past, server_attempts=0, server_start_at=0.0)

    def server_attempted(self, now: float) -> "Past":
        wait = FIRST_SERVER_WAIT_SECONDS * 2.0 ** min(self.server_attempts, _MOST_DOUBLINGS)
        start_at = now + min(wait, LONGEST_SERVER_WAIT_SECONDS)
        return replace(self, server_attempts=self.server_attempts + 1, server_start_at=start_at)
