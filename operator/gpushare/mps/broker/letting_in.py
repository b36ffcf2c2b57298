"""Lets one process in that has asked to attach: it waits for its grant, for its container's place on the GPU where that
has a queue, and for a turn; then it is passed its socket to the MPS server.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpushare.api.conditions import DaemonReason
from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.broker.admission import AttachAdmitted, AttachDenied, AttachUndecided, GrantsFile, judge
from gpushare.mps.broker.attach import NotPassedError, ServerHungError, StalledError, attach, farewell
from gpushare.mps.broker.clients import AttachedClients
from gpushare.mps.broker.daemon import BrokeredDaemon
from gpushare.mps.broker.kept_sockets import UnderWay
from gpushare.mps.broker.listed import AttachDeniedError, ClientList, identity_of
from gpushare.mps.broker.record import BrokerRecord
from gpushare.mps.broker.turns import NoTurnError, SupervisorAwayError, Turns
from gpushare.mps.files import ModelFiles
from gpushare.mps.identity import Container, Identity
from gpushare.mps.layout import GpuDir
from gpushare.mps.packets import Peer, has_ended, has_hung_up
from gpushare.mps.pages.client_pages import ClientPages
from gpushare.mps.queue.place_queue import NoPlaceError, PlaceQueue, Waited
from gpushare.mps.terminations import TerminationFile, was_asked
from gpushare.mps.wire import QueuedSocket, RefusedAttach
from gpushare.process.procfs import Owner

GRANT_SECONDS = 20.0
"""How long a process waits for the agent to name its container: the pod's status may lag behind its start."""
STARTING_SECONDS = 1800.0
"""The same where the pod's other containers are still being started: each may pull a large image first."""
TURN_SECONDS = 60.0
"""How long it waits for a GPU that takes no client now, as it would wait for an MPS server that starts."""
AWAY_SECONDS = 900.0
"""The same while the supervisor is away: the kubelet starts it again within 300 s, and its daemon starts then."""
_AWAY = (DaemonReason.SUPERVISOR_SILENT, DaemonReason.STARTING, DaemonReason.PENDING, DaemonReason.DAEMON_FAILED)
"""Why the GPU is closed meanwhile."""
RETRY_SECONDS = 0.2


def _patience(verdict: AttachUndecided) -> float:
    """Seconds that a process waits for a decision."""
    if verdict.starting:
        return STARTING_SECONDS
    if verdict.refused.reason is not RefusedAttach.GPU_CLOSED:
        return GRANT_SECONDS
    return AWAY_SECONDS if verdict.closed.partition(":")[0] in _AWAY else TURN_SECONDS


@dataclass(frozen=True, slots=True)
class Asking:
    """A process that has asked to attach. `client`: as the queue of kept sockets, `under_way`, shows it."""

    sock: socket.socket
    peer: Peer
    owners: Sequence[Owner]
    client: QueuedSocket
    under_way: UnderWay


class _PlaceUse:
    """The use that one attach makes of its container's place."""

    def __init__(self, queue: PlaceQueue, sock: socket.socket, since: float) -> None:
        self._queue = queue
        self._sock = sock
        self._since = since
        self._used: tuple[Container, Identity] | None = None

    async def wait(self, admitted: AttachAdmitted, process: Identity) -> None:
        """Returns once the container has a place, or that is another matter: its grant has changed, say.
        AttachDeniedError, ProtocolError.
        """
        try:
            waited = await self._queue.wait(self._sock, process, admitted.key, tells=False, since=self._since)
        except NoPlaceError as error:
            denied = AttachDenied(RefusedAttach.NO_PLACE, str(error), admitted.owner, admitted.container)
            raise AttachDeniedError(denied) from error
        if waited is Waited.PLACE:
            self._used = admitted.key, process
            self._queue.holders.attaching(*self._used)
        elif waited is Waited.CHANGED:
            await asyncio.sleep(RETRY_SECONDS)

    def is_needed(self) -> bool:
        return self._queue.is_on and self._used is None

    def end(self, *, attached: bool) -> None:
        if self._used is not None:
            self._queue.holders.attached(*self._used) if attached else self._queue.holders.failed(*self._used)
            self._used = None


@dataclass(frozen=True, slots=True)
class LettingIn:
    """For the clients of one GPU. One attach at a time has `attaching`. `has_ended`: whether the process that made this
    connection has; OSError: that is not known.
    """

    gpu: GpuDir
    grants: GrantsFile
    files: ModelFiles
    daemon: BrokeredDaemon
    clients: AttachedClients
    listed: ClientList
    turns: Turns
    pages: ClientPages
    record: BrokerRecord
    queue: PlaceQueue
    attaching: asyncio.Lock
    problems: LogOnChange
    has_ended: Callable[[socket.socket, Peer], bool] = has_ended

    async def let_in(self, asking: Asking) -> bool:
        """Waits as long as the process does; False: it hung up. AttachDeniedError, ProtocolError."""
        use, attached = _PlaceUse(self.queue, asking.sock, asking.client.since), False
        try:
            attached = await self._let_in(asking, use)
        finally:
            use.end(attached=attached)
        if attached:
            await farewell(asking.sock)
        return attached

    async def _let_in(self, asking: Asking, use: _PlaceUse) -> bool:
        began, told, owners, named = time.monotonic(), False, asking.owners, False
        while not has_hung_up(asking.sock):
            if asking.client.context and use.is_needed():
                held = self.grants.held_by(owners)
                if held is not None:
                    await use.wait(held, identity_of(asking.peer, held))
                    began = time.monotonic()
                    continue
            waited = time.monotonic() - began
            verdict = judge(self.grants.now(), owners)
            match verdict:
                case AttachDenied():
                    raise AttachDeniedError(verdict)
                case AttachUndecided(starting=True) if not named:  # its pod was unknown when it connected
                    owners, named = self.grants.named(asking.peer.pid, owners), True
                    continue
                case AttachUndecided():
                    if waited > _patience(verdict):
                        raise AttachDeniedError(verdict.refused)
                case AttachAdmitted():
                    await self._check_not_ended(asking.peer, verdict)
                    try:
                        async with self.attaching:
                            return await self._attach(asking, verdict)
                    except NoTurnError as error:
                        failed = isinstance(error, NotPassedError)
                        reason = RefusedAttach.FAILED if failed else RefusedAttach.GPU_CLOSED
                        denied = AttachDenied(reason, str(error), verdict.owner, verdict.container)
                        if failed and not told:  # at once, while it may still get in
                            self.record.failed(asking.peer.pid, denied)
                            told = True
                        if waited > (AWAY_SECONDS if isinstance(error, SupervisorAwayError) else TURN_SECONDS):
                            raise AttachDeniedError(denied) from error
            await asyncio.sleep(RETRY_SECONDS)
        return False

    async def _attach(self, asking: Asking, admitted: AttachAdmitted) -> bool:
        """False: it hung up."""
        process, container = identity_of(asking.peer, admitted), admitted.key
        self.listed.check_attached(process, container, admitted)
        if has_hung_up(asking.sock):
            return False
        self._check_runs(asking, admitted)
        async with self.turns.hold(admitted.grant, *container) as given:
            await self.listed.check_listed(process, container, admitted)
            if self._was_ended(asking.peer):
                raise NoTurnError("the MPS daemon is just asked to end the contexts of this process")
            new, attached = self.clients.add(container, process), False
            try:
                passed = await attach(asking.sock, given, self.daemon, asking.client, asking.under_way)
                self.clients.passed(container, process, passed)
                attached = True
            except (StalledError, ServerHungError) as error:
                self.clients.stalled(container)
                reason = RefusedAttach.STALLED if isinstance(error, StalledError) else RefusedAttach.SERVER_HUNG
                raise AttachDeniedError(AttachDenied(reason, str(error), admitted.owner, admitted.container)) from error
            finally:
                if new and not attached:
                    self.clients.remove(container, process)
        self.record.arrived(asking.peer.pid, admitted.owner, admitted.container, new=new)
        self.pages.attached(process, admitted.grant)
        return True

    def _check_runs(self, asking: Asking, admitted: AttachAdmitted) -> None:
        """NoTurnError, AttachDeniedError."""
        try:
            ended = self.has_ended(asking.sock, asking.peer)
        except OSError as error:
            raise NoTurnError(f"whether the process that connected runs is not known: {error.strerror}") from error
        if ended:
            text = "the process that connected has ended, and another one holds its connection"
            raise AttachDeniedError(AttachDenied(RefusedAttach.PROTOCOL, text, admitted.owner, admitted.container))

    async def _check_not_ended(self, peer: Peer, admitted: AttachAdmitted) -> None:
        """AttachDeniedError: the daemon was asked to end its contexts. It has replaced its program since."""
        if not self._was_ended(peer):
            return
        await asyncio.sleep(RETRY_SECONDS)  # where the daemon answers that it is no client, the agent takes that back
        if self._was_ended(peer):
            text = "the MPS daemon was asked to end the contexts of this process, and would not be asked again"
            raise AttachDeniedError(AttachDenied(RefusedAttach.ENDED, text, admitted.owner, admitted.container))

    def _was_ended(self, peer: Peer) -> bool:
        read = self.files.read(self.gpu.endings, TerminationFile)
        if read.value is None and not read.absent:
            text = "GPU %s: whose contexts were ended is not known: %s"
            self.problems.log(text, self.gpu.uuid, read.reason, key="ended")
            return False
        self.problems.clear("ended")
        return read.value is not None and was_asked(read.value.asked, peer.pid)
