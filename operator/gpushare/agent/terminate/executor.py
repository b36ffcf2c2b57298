"""Carries out requests to end clients: the same steps, order and retry for every reason.

A request waits for its turn, which is the order of the reasons and then the earliest deadline. Then the process is
ended through the MPS daemon (`terminate_client`: written down first, and once for each client) or signalled; what was
done is recorded on its pod and counted. What failed is not tried again for RETRY_SECONDS: whoever decided asks again at
the next reading, if the reason still holds.

Guarantees: GPUs do not wait for one another. A departure waits for nothing but the command that its own GPU's daemon
answers just then, not for what else other reasons have asked for there. Signals that need no answer of the MPS daemon
do not wait for it. No signal reaches another process than the one that was read (a pidfd, and the start time read
through it), nor, where `past_mps` says so, one that the daemon lists as its client. Every call ends within its time
limit.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from signal import Signals

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.process import signals
from gpushare.agent.process.processes import Identity, ProcessIdentity, identity
from gpushare.agent.terminate.requests import TerminationReason, TerminationRequest, ended_event
from gpushare.agent.terminate.terminate_client import Attempt, ClientTerminator
from gpushare.api.gpunode import Uuid
from gpushare.kube.events.event import Event
from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.clock import boot_clock
from gpushare.mps.control import ControlError, DaemonControl, NoDaemonError
from gpushare.process.procfs import PROC, read_start_time

LOG = logging.getLogger(__name__)

RETRY_SECONDS = 0.9
"""Less than the second between two scans, so that each of them may try again what failed in the one before."""
DAEMON_SECONDS = 30.0
"""The limit for all requests of one turn. A wedged daemon is given up after its first command's own limit."""
SIGNAL_SECONDS = 10.0
SENT_SECONDS = 60.0
"""What was sent to a process that has ended is known for so long."""

Attempted = Callable[[TerminationReason, int, bool], None]
"""Takes (reason, how many clients were terminated, whether others could not be)."""
Send = Callable[[ProcessIdentity, Signals, Path], bool]
"""The signature of `signals.send`."""
_Key = tuple[TerminationReason, Identity, Signals | None]


@dataclass(slots=True)
class _Lane:
    """The requests of one GPU that are carried out one after the other. `first`: the most urgent order among them."""

    caller: BlockingCaller
    pending: dict[_Key, TerminationRequest] = field(default_factory=dict)
    first: int = 0
    task: asyncio.Task[None] | None = None

    def turn(self) -> list[TerminationRequest]:
        """The requests that are next: of one reason, and all by the daemon or all by signals."""
        waiting = sorted(self.pending.values(), key=lambda request: (request.reason.order, request.deadline))
        reason, by_daemon = waiting[0].reason, waiting[0].signal is None
        self.first = reason.order
        return list(
            takewhile(lambda request: request.reason is reason and (request.signal is None) is by_daemon, waiting)
        )


class TerminationExecutor:
    def __init__(
        self,
        root: Path,
        control: Callable[[Uuid], DaemonControl],
        record: Callable[[Event], None],
        clock: Callable[[], float] = boot_clock,
        proc: Path = PROC,
        attempted: Attempted = lambda reason, terminated, failed: None,
        send: Send = signals.send,
    ) -> None:
        """`root`: of the GPUs' directories. `control`: the control program of a GPU's MPS daemon. `record`: takes an
        event, and never waits. `clock`: CLOCK_BOOTTIME seconds. `attempted`: called after each turn of the daemon.
        """
        self._control = control
        self._record = record
        self._clock = clock
        self._proc = proc
        self._attempted = attempted
        self._send = send
        self._terminator = ClientTerminator(root, control, proc)
        self._lanes: dict[tuple[Uuid, bool], _Lane] = {}
        self._retry_at: dict[tuple[Uuid, _Key], float] = {}
        self._sent = _SentSignals(proc)
        self._problems = LogOnChange(LOG)

    def was_asked(self, uuid: Uuid, process: ProcessIdentity) -> bool:
        """See ClientTerminator.was_asked."""
        return self._terminator.was_asked(uuid, process)

    def sent(self, process: Identity) -> Mapping[Signals, float]:
        """When each signal was sent to the process, by any request; CLOCK_BOOTTIME seconds."""
        return self._sent.of(process)

    def submit(self, requests: Iterable[TerminationRequest]) -> None:
        """Never waits. A request that waits already is not asked for twice."""
        now = self._clock()
        self._retry_at = {key: at for key, at in self._retry_at.items() if at > now}
        for request in requests:
            key = _key(request)
            asked = request.signal is None and self.was_asked(request.uuid, request.process)
            if not asked and (request.uuid, key) not in self._retry_at:
                self._wait_turn(request, key)

    def note(self, reason: TerminationReason, uuid: Uuid, problem: str, step: str = "end") -> None:
        """Logs once why clients are not ended yet; an empty `problem`: nothing is in the way of this step any more."""
        if problem:
            text = "%s on GPU %s not ended yet, trying again: %s"
            self._problems.log(text, reason.clients, uuid, problem, key=(reason, uuid, step))
        else:
            self._problems.clear((reason, uuid, step))

    def _wait_turn(self, request: TerminationRequest, key: _Key) -> None:
        uuid, asks_daemon = request.uuid, request.asks_daemon
        lane = self._lanes.get((uuid, asks_daemon))
        if lane is None:
            name = f"MPS daemon of GPU {uuid}" if asks_daemon else f"signals to clients of GPU {uuid}"
            seconds = DAEMON_SECONDS if asks_daemon else SIGNAL_SECONDS
            lane = self._lanes[uuid, asks_daemon] = _Lane(BlockingCaller(name, seconds))
        lane.pending.setdefault(key, request)
        lane.first = min(lane.first, request.reason.order)
        if lane.task is None:
            lane.task = asyncio.create_task(self._run(lane), name=f"terminations on GPU {uuid}")

    async def _run(self, lane: _Lane) -> None:
        try:
            while lane.pending:
                await self._carry_out(lane, lane.turn())
        finally:
            lane.pending.clear()  # after an error: what is left is asked for again, if its reason still holds
            lane.task = None

    async def _carry_out(self, lane: _Lane, turn: Sequence[TerminationRequest]) -> None:
        uuid, reason, by_daemon = turn[0].uuid, turn[0].reason, turn[0].signal is None
        began = self._clock()
        try:
            work = self._terminate if by_daemon else self._signal
            attempt = await lane.caller.call(work, turn, lambda: lane.first < reason.order)
        except (HungError, OSError) as error:
            attempt = Attempt((), str(error))
        for request in turn:
            if request not in attempt.untried:
                del lane.pending[_key(request)]
                if request not in attempt.terminated:
                    self._retry_at[uuid, _key(request)] = began + RETRY_SECONDS
        for request in attempt.terminated:
            if (event := ended_event(request)) is not None:
                self._record(event)
        self.note(reason, uuid, attempt.problem)
        if by_daemon:
            self._attempted(reason, len(attempt.terminated), bool(attempt.problem))

    def _terminate(
        self, turn: Sequence[TerminationRequest], gives_way: Callable[[], bool]
    ) -> Attempt[TerminationRequest]:
        """Blocks."""
        requests = {identity(request.process): request for request in turn}
        attempt = self._terminator.terminate(turn[0].uuid, [request.process for request in turn], gives_way)
        return Attempt(
            [requests[identity(process)] for process in attempt.terminated],
            attempt.problem,
            [requests[identity(process)] for process in attempt.untried],
        )

    def _signal(self, turn: Sequence[TerminationRequest], gives_way: Callable[[], bool]) -> Attempt[TerminationRequest]:
        """Blocks. `terminated`: those that got their signal now."""
        signalled: list[TerminationRequest] = []
        problem = ""
        try:
            listed = self._listed(turn[0].uuid) if any(request.past_mps for request in turn) else set()
        except ControlError as error:
            return Attempt((), str(error))
        for number, request in enumerate(turn):
            if gives_way():
                return Attempt(signalled, problem, turn[number:])
            if request.past_mps and request.process.pid in listed:
                problem = f"process {request.process.pid} is a client of the MPS daemon, although NVML does not say so"
            elif not all(self.was_asked(request.uuid, client) for client in request.after):
                problem = f"process {request.process.pid} waits for the end of the MPS clients in its container"
            else:
                problem = self._send_once(request, signalled) or problem
        return Attempt(signalled, problem)

    def _listed(self, uuid: Uuid) -> set[int]:
        """Blocks. The PIDs of all clients that the GPU's MPS daemon has; without a daemon it has none."""
        control = self._control(uuid)
        try:
            return {pid for server in control.server_list() for pid in control.clients(server)}
        except NoDaemonError:
            return set()

    def _send_once(self, request: TerminationRequest, signalled: list[TerminationRequest]) -> str:
        """Blocks. Returns the problem, if there was one."""
        process, number = request.process, request.signal
        if number is None or self._sent.of(identity(process)).get(number, -1.0) >= request.since:
            return ""
        try:
            reached = self._send(process, number, self._proc)
        except OSError as error:
            return f"process {process.pid} cannot be signalled: {error.strerror or error}"
        self._sent.add(identity(process), number, self._clock())
        if reached:
            signalled.append(request)
        return ""


class _SentSignals:
    """Which signals were sent, for as long as the process is there and SENT_SECONDS more. Used by several threads."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._lock = threading.Lock()
        self._sent: dict[Identity, dict[Signals, float]] = {}

    def of(self, process: Identity) -> Mapping[Signals, float]:
        with self._lock:
            return dict(self._sent.get(process, {}))

    def add(self, process: Identity, number: Signals, now: float) -> None:
        """Blocks."""
        with self._lock:
            self._sent = {
                key: sent
                for key, sent in self._sent.items()
                if now - max(sent.values()) < SENT_SECONDS or read_start_time(key[0], self._proc) == key[1]
            }
            self._sent.setdefault(process, {})[number] = now


def _key(request: TerminationRequest) -> _Key:
    return request.reason, identity(request.process), request.signal
