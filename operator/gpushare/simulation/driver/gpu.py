"""One simulated GPU: its contexts, their memory and their kernels. No I/O; the caller passes the time.

Not simulated: contention. A kernel takes as long as its own SMs need, whatever the neighbours do.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from gpushare.simulation import limits
from gpushare.simulation.cuda_errors import LAUNCH_FAILURE, MPS_SERVER_NOT_READY, OUT_OF_MEMORY, UNAVAILABLE
from gpushare.simulation.driver.failure_outcome import FailureCause, FailureOutcome, outcome_of

SAMPLE_SECONDS = 1 / 6
"""Over which utilisation is counted. NVML's own period is between this and a second, by product; an H100 showed a
change after one or two such periods (measurements/results/h100/utilisation-delay.json)."""


class DriverComputeMode(StrEnum):
    """Spelt as in the API models, which cost too much to import here."""

    DEFAULT = "Default"
    EXCLUSIVE_PROCESS = "ExclusiveProcess"
    PROHIBITED = "Prohibited"


class Kind(StrEnum):
    COMPUTE = "compute"
    SERVER = "server"
    CLIENT = "client"


class RefusedByDriver(Exception):
    """The driver refuses with the CUDA error `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error {code}")
        self.code = code


@dataclass(slots=True)
class Context:
    """`server`: for a client, the id of the MPS server's context. `limit`: bytes. `busy_until`: monotonic seconds.

    Of a server: `holding` is False once it has let go of the GPU; `faulted` and `poisoned` are explained at
    FailureOutcome; `stuck` means that it stays faulted even without clients.
    """

    id: int
    pid: int
    kind: Kind
    context_mib: int
    sms: int
    server: int | None = None
    limit: int | None = None
    error: int = 0
    holding: bool = True
    faulted: bool = False
    poisoned: bool = False
    stuck: bool = False
    busy_until: float = 0.0
    allocations: dict[int, int] = field(default_factory=dict)

    @property
    def allocated(self) -> int:
        return sum(self.allocations.values())

    @property
    def used(self) -> int:
        return self.context_mib * limits.MIB + self.allocated

    def remaining_ms(self, now: float) -> float:
        return max(0.0, (self.busy_until - now) * 1000)


@dataclass(slots=True)
class SimulatedGpu:
    uuid: str
    index: int
    minor: int
    product: str
    sms: int
    memory_mib: int
    mode: DriverComputeMode = DriverComputeMode.DEFAULT
    lost: bool = False
    contexts: dict[int, Context] = field(default_factory=dict)
    _last_id: int = 0
    _busy: deque[tuple[float, float]] = field(default_factory=deque)
    """When kernels ran, from and until, in monotonic seconds: what is older than SAMPLE_SECONDS is forgotten."""
    _counted_until: float = 0.0

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def holders(self) -> list[Context]:
        """The contexts on this GPU: failed clients until they end, but no server that let go."""
        return [context for context in self.contexts.values() if context.holding]

    def clients(self, server: int) -> list[Context]:
        return [context for context in self.contexts.values() if context.server == server]

    def free(self) -> int:
        return self.memory_mib * limits.MIB - sum(context.used for context in self.holders())

    def open_compute(self, pid: int) -> Context:
        """A context without MPS. RefusedByDriver(46) by the compute mode, RefusedByDriver(2) when it does not fit."""
        self._check_mode(others=self.holders())
        return self._add(Context(self._next_id(), pid, Kind.COMPUTE, limits.PLAIN_CONTEXT_MIB, self.sms))

    def open_server(self, pid: int) -> Context:
        """An MPS server's own context. RefusedByDriver(46) beside another process on an exclusive GPU (assumed)."""
        self._check_mode(others=self.holders())
        return self._add(Context(self._next_id(), pid, Kind.SERVER, limits.SERVER_CONTEXT_MIB, self.sms))

    def open_client(self, pid: int, server: Context, threads: float, limit: int | None) -> Context:
        """An MPS client's context. A server that had let go takes the GPU again, if the compute mode permits it.

        RefusedByDriver: 2 if the context alone is above the limit, 46 by the compute mode, 807 until the clients of a
        fault have gone, 719 once by a poisoned server, which then lets go.
        """
        if server.faulted:
            raise RefusedByDriver(MPS_SERVER_NOT_READY)
        if server.poisoned:
            server.poisoned = server.holding = False
            raise RefusedByDriver(LAUNCH_FAILURE)
        self._check_mode(others=[] if server.holding else self.holders())
        context_mib = limits.context_mib(threads)
        if limit is not None and context_mib * limits.MIB > limit:
            raise RefusedByDriver(OUT_OF_MEMORY)
        server.holding = True
        sms = limits.enforced_sms(self.sms, threads)
        return self._add(Context(self._next_id(), pid, Kind.CLIENT, context_mib, sms, server.id, limit))

    def _check_mode(self, others: list[Context]) -> None:
        if (
            self.mode is DriverComputeMode.PROHIBITED
            or (self.mode is DriverComputeMode.EXCLUSIVE_PROCESS and others)
            or self.lost
        ):
            raise RefusedByDriver(UNAVAILABLE)

    def _add(self, context: Context) -> Context:
        if context.used > self.free():
            raise RefusedByDriver(OUT_OF_MEMORY)
        self.contexts[context.id] = context
        return context

    def add_non_mps(self, pid: int, memory_mib: int) -> None:
        """A call of tests: adds a compute process without MPS, in any compute mode."""
        context = Context(self._next_id(), pid, Kind.COMPUTE, memory_mib, self.sms)
        self.contexts[context.id] = context

    def remove_non_mps(self, pid: int) -> None:
        for context in [
            candidate for candidate in self.contexts.values() if candidate.pid == pid and candidate.kind is Kind.COMPUTE
        ]:
            del self.contexts[context.id]

    def available(self, context: Context) -> int:
        """Bytes that `context` may still allocate: cudaMemGetInfo's free memory."""
        if context.limit is None:
            return self.free()
        return min(self.free(), context.limit - context.used)

    def allocate(self, context: Context, size: int) -> int:
        """A handle; RefusedByDriver(2) above the limit or the GPU's memory."""
        if size > self.available(context):
            raise RefusedByDriver(OUT_OF_MEMORY)
        handle = self._next_id()
        context.allocations[handle] = size
        return handle

    def launch(self, context: Context, milliseconds: float, now: float) -> None:
        """Queue a kernel that takes `milliseconds` on the whole GPU, and proportionally longer on fewer SMs."""
        self._count_busy(now)
        start = max(now, context.busy_until)
        context.busy_until = start + milliseconds / 1000 * self.sms / context.sms

    def fail(self, cause: FailureCause, culprit: Context, now: float) -> FailureOutcome:
        """Apply `cause` to all contexts on this GPU; returns the outcome."""
        self._count_busy(now)
        server = culprit if culprit.kind is Kind.SERVER else self.contexts.get(culprit.server or 0)
        clients = [] if server is None else self.clients(server.id)
        neighbours = [client.id for client in clients if client.id != culprit.id and not client.error]
        outcome = outcome_of(cause, culprit.id, neighbours, culprit.remaining_ms(now))
        for context_id, error in outcome.errors.items():
            failed = self.contexts[context_id]
            failed.error, failed.busy_until = error, 0.0
        if server is not None:
            server.faulted |= outcome.fatal
            server.poisoned |= outcome.poisoned
        return outcome

    def utilization(self, now: float) -> int:
        """Percent of the last SAMPLE_SECONDS in which a kernel ran, on however few SMs, as NVML counts it."""
        self._count_busy(now)
        begin = now - SAMPLE_SECONDS
        return round(100 / SAMPLE_SECONDS * sum(end - max(start, begin) for start, end in self._busy))

    def _count_busy(self, now: float) -> None:
        """Call it before a kernel is queued or cut off: from the last call on the GPU was busy without a gap until the
        last kernel had ended.
        """
        end = min(now, max((context.busy_until for context in self.contexts.values()), default=0.0))
        if end > self._counted_until:
            self._busy.append((self._counted_until, end))
        while self._busy and self._busy[0][1] <= now - SAMPLE_SECONDS:
            self._busy.popleft()
        self._counted_until = now

    def close(self, context: Context, now: float) -> None:
        """The context's process has ended or has closed it."""
        self._count_busy(now)
        self.contexts.pop(context.id, None)
        server = self.contexts.get(context.server or 0)
        if server is not None and server.faulted and not server.stuck and not self.clients(server.id):
            # The server is ACTIVE again, but its own context went with those of its clients (measured by NVML).
            server.faulted = server.holding = False
