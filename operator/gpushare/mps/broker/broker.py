"""The attach broker of one MPS pod: listens where client containers connect, and attaches them to the MPS daemons.

Guarantees: `attach/control` of a GPU listens exactly while the pod's supervisor lets clients in (`client/control` is
there, and `client/share` names the share). A broker that starts again gets the socket of the one before it, with those
who wait there, and goes on with what that had under way (`kept_sockets`): a CUDA process that finds no socket, or is
not greeted, runs without MPS, silently. So everybody is greeted, and whoever is refused is refused after that: CUDA
then fails with error 805.

A process attaches only if its container holds a part of the GPU, within the grant's number of processes, and in a turn
in which the server's limits are the grant's own. A connection can be handed to other processes, so it is worth nothing
once the process that made it has ended. How many processes and contexts a container has is what the broker has let in
and what the server lists, together (`listed`); whom the server lists and who never attached is told to the agent. A
process whose contexts the agent had ended attaches no more: it could not be ended in order again, and its end would
take its neighbours along. Connections are bounded, in all and for each pod. The broker's end harms no running client:
after an attach no connection of theirs is left.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from msgspec.structs import replace

from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.attach_protocol import PlaceState, ProtocolError, Request
from gpushare.mps.broker import kept_sockets
from gpushare.mps.broker.admission import AttachAdmitted, AttachDenied, GrantsFile, ReadContainer
from gpushare.mps.broker.attach import (
    GONE,
    CommandRefusedError,
    ServerHungError,
    end_passed,
    farewell,
    read_request,
)
from gpushare.mps.broker.clients import AttachedClients
from gpushare.mps.broker.connections import CONNECTIONS_OF_PROCESS, MAX_CONNECTIONS
from gpushare.mps.broker.daemon import BrokeredDaemon
from gpushare.mps.broker.kept_sockets import AttachSockets, UnderWay
from gpushare.mps.broker.letting_in import Asking, LettingIn
from gpushare.mps.broker.listed import RESTORE_SECONDS, AttachDeniedError, ClientList, open_sockets
from gpushare.mps.broker.listener import AttachListener, ReadOwners
from gpushare.mps.broker.record import BrokerRecord
from gpushare.mps.broker.turns import Turns
from gpushare.mps.files import FileVersion, ModelFiles, file_version
from gpushare.mps.identity import Container, Identity
from gpushare.mps.layout import GpuDir, gpu_dirs
from gpushare.mps.packets import SO_PEERPIDFD, Peer, drop_unread, has_ended, has_hung_up, peer_of, plain, send_now
from gpushare.mps.pages.board import open_board
from gpushare.mps.pages.client_pages import ClientPages, Handed
from gpushare.mps.pages.layout import PagesAnswer
from gpushare.mps.pages.sending import send_pages
from gpushare.mps.queue.looks import Looks
from gpushare.mps.queue.place_queue import NoPlaceError, PlaceQueue, Waited
from gpushare.mps.wire import QueuedKind, QueuedSocket, RefusedAttach
from gpushare.process import procfs
from gpushare.process.bounded_read import read_text
from gpushare.process.event_loop import within
from gpushare.process.procfs import Owner
from gpushare.process.restarts import NEVER, Restarts
from gpushare.process.termination_log import read_container

LOG = logging.getLogger(__name__)
SCAN_SECONDS = 0.5
"""How soon a change of the supervisor's link is followed."""
LOOK_SECONDS = 1.0
"""Between two looks at whom the MPS server lists."""
CLOSE_SECONDS = 6.0
"""The time for the attach under way when the broker ends."""


def read_cluster_owners(pid: int) -> Sequence[Owner] | None:
    """The owners of a process in this cluster, where it runs in a pod of another. Of a process of which they are not
    known none, so it gets no part of anybody's.
    """
    try:
        owners = procfs.read_owners(pid)
    except OSError as error:
        LOG.warning("the pod of PID %d is not known: %s", pid, error)
        return ()
    return None if owners is None else procfs.within_cluster(owners, _own_owners())


@cache
def _own_owners() -> Sequence[Owner]:
    return procfs.read_owners(os.getpid()) or ()


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """What all brokers of one MPS pod share. `clock`: CLOCK_BOOTTIME seconds. `look_seconds`: between two looks at whom
    the MPS server lists. `peer_option`: see `packets.peer_of`. `room`: for connections, at the same time.
    """

    share: str
    clock: Callable[[], float]
    read_owners: ReadOwners = read_cluster_owners
    read_container: ReadContainer = read_container
    restarts: Restarts = NEVER
    look_seconds: float = LOOK_SECONDS
    peer_option: int = SO_PEERPIDFD
    room: int = MAX_CONNECTIONS


async def serve(root: Path, settings: BrokerSettings) -> None:
    """Brokers for every GPU below `root` whose clients the share lets in. Runs until cancelled."""
    brokers: dict[str, Broker] = {}
    problems = LogOnChange(LOG)
    try:
        while True:
            try:
                for gpu in gpu_dirs(root):
                    if gpu.uuid not in brokers and _lets_in(gpu, settings.share):
                        brokers[gpu.uuid] = Broker(gpu, settings)
                problems.clear()
            except OSError as error:  # such as no descriptor being left: those that are there go on
                problems.log("the GPUs' directories cannot be read: %s", error)
            # At the same time: a wedged daemon takes DAEMON_SECONDS, and the others' heartbeats must not wait in line.
            await asyncio.gather(*(broker.step() for broker in brokers.values()))
            for uuid in [uuid for uuid, broker in brokers.items() if not broker.gpu.path.exists()]:
                await brokers.pop(uuid).close()
            await asyncio.sleep(SCAN_SECONDS)
    finally:
        for broker in brokers.values():
            await broker.close()


def _lets_in(gpu: GpuDir, share: str) -> bool:
    """OSError: that cannot be read now."""
    try:
        return gpu.client_control.exists() and read_text(gpu.client_share) == share
    except (FileNotFoundError, NotADirectoryError):
        return False


def _lives(process: Identity) -> bool:
    """True where that is not known."""
    pid, started = process
    try:
        return procfs.read_start_of_running(pid) == started
    except OSError:
        return True


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


class Broker:
    """The broker of one GPU."""

    def __init__(self, gpu: GpuDir, settings: BrokerSettings) -> None:
        self.gpu = gpu
        self._settings = settings
        self._read_owners = settings.read_owners
        self._files = ModelFiles()
        self._grants = GrantsFile(gpu, settings.share, self._files, settings.read_container)
        self._listener = AttachListener(
            gpu,
            settings.read_owners,
            self._serve,
            self._has_looked,
            self._cannot_accept,
            self._hung_up_on,
            self._grants.connections_needed,
            partial(peer_of, option=settings.peer_option),
            settings.room,
        )
        self._taken: tuple[AttachSockets, bool] | None = None
        """The sockets that the supervisor gave, until clients are let in there, and whether an earlier broker had them.
        """
        self._daemon = BrokeredDaemon(gpu)
        self._clients = AttachedClients(procfs.read_start_of_running, time.monotonic, open_sockets)
        self._listed = ClientList(self._daemon, self._clients, self._container_of, self._owner_of)
        self._restore_until = self._adopt_until = self._looked_at = 0.0
        self._look: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._look.set_result(None)
        self._attaching = asyncio.Lock()
        self._turns = Turns(gpu)
        self._pages = ClientPages(settings.clock, time.monotonic_ns)
        self._number = time.time_ns()
        """Another one of each broker, for the board."""
        self._record = BrokerRecord(gpu, settings.clock, self._clients.living, settings.restarts)
        self._problems = LogOnChange(LOG)
        self._looks = Looks()
        self._queue = PlaceQueue(settings.clock, _lives, self._write_places)
        self._door = LettingIn(
            gpu,
            self._grants,
            self._files,
            self._daemon,
            self._clients,
            self._listed,
            self._turns,
            self._pages,
            self._record,
            self._queue,
            self._attaching,
            self._problems,
            partial(has_ended, option=settings.peer_option),
        )
        self._boarding: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._keeper: FileVersion | None = None
        """Which supervisor has copies of this broker's sockets, by its own socket."""

    async def step(self) -> None:
        """Opens or closes the socket as the supervisor wants it, and keeps broker.json while it is open."""
        self._clients.forget_ended()
        self._queue.follow(self._grants.now())
        try:
            wanted = _lets_in(self.gpu, self._settings.share)
            self._problems.clear("share")
        except OSError as error:
            self._problems.log("GPU %s: nothing is changed: %s", self.gpu.uuid, error, key="share")
            wanted = self._listener.is_open
        if self._listener.is_open and not (wanted and self._listener.is_named()):
            self._listener.close(remove=not wanted)
        if wanted and not self._listener.is_open:
            await self._open()
        if (
            self._listener.is_open
            and self._look.done()
            and time.monotonic() - self._looked_at >= self._settings.look_seconds
        ):
            self._look = asyncio.create_task(self._look_at_list())
        self._pages.keep(self._clients.has_attached)
        self._pages.read()
        self._record.activity = self._pages.activity()
        self._record.listening = self._listener.is_open
        self._record.waited = self._listener.waited
        self._queue.step()
        self._note_places()
        if self._keeping is None and self._listener.is_open and self._keeper != self._supervisor():
            self._keeping = asyncio.create_task(self._leave_sockets())
        if wanted:
            self._record.write()

    async def close(self) -> None:
        """Ends the attach under way, and gives up the others. The name stays, for the next broker to take over."""
        self._listener.close(remove=False)
        with suppress(TimeoutError):
            await within(CLOSE_SECONDS, self._attaching.acquire())
        self._look.cancel()
        await self._listener.end_connections()
        self._queue.close()
        if self._taken is not None:
            self._taken[0].close()
        for task in (self._boarding, self._keeping):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._turns.end_kept()
        self._pages.close()

    async def _open(self) -> None:
        try:
            if self._listener.named():
                await self._take_sockets()  # after the queue is known: who waited there waits on
            greeting = await self._daemon.greeting()
            await self._listed.restore()
            before = self._record.restore()
            if before is not None:
                self._restore_until = time.monotonic() + RESTORE_SECONDS
                self._pages.restore((client.pid, client.started) for client in self._record.without_pages)
                if before.value is None or before.value.places is None:  # it counted no places
                    self._adopt_until = self._restore_until
                else:
                    self._queue.restore(before.value)
            self._look_at_places()
            sockets, taken = await self._take_sockets()
            self._listener.open(greeting, sockets, taken=taken)
            self._taken = None
            if self._boarding is None or self._boarding.done():
                self._boarding = asyncio.create_task(self._open_board())
            self._record.problem = ""
            self._problems.clear("open")
        except (OSError, TimeoutError, ProtocolError) as error:
            self._record.problem = f"the MPS daemon cannot be reached: {_text(error)}"
            self._problems.log("GPU %s: %s", self.gpu.uuid, self._record.problem, key="open")

    async def _open_board(self) -> None:
        """Without it nobody gets pages, and all else goes on."""
        try:
            self._pages.board = await open_board(self.gpu.board, self._number)
            self._note_places()
            self._problems.clear("board")
        except OSError as error:
            self._problems.log("GPU %s: clients have no class: %s", self.gpu.uuid, error, key="board")

    async def _take_sockets(self) -> tuple[AttachSockets, bool]:
        """Once for each opening: what an earlier broker left under way goes on first, since the MPS server may wait for
        it, and answers nobody meanwhile.
        """
        if self._taken is None:
            named, keeper = self._listener.named(), self._supervisor()
            sockets = await kept_sockets.take(self.gpu)
            self._taken, self._keeper = (sockets, sockets.inode == named), keeper
            await self._go_on(sockets.under_way)
        return self._taken

    async def _go_on(self, under_way: UnderWay) -> None:
        """Ends what an earlier broker left between itself and the MPS server, and serves the clients that wait."""
        left = under_way.left()
        waiting = {queued.number: (queued, sock) for queued, sock in left if queued.kind is QueuedKind.CLIENT}
        async with self._attaching:
            for queued, sock in left:
                if queued.kind is QueuedKind.ASKED:
                    await self._daemon.end_asked(sock)
                elif queued.kind is QueuedKind.PASSED and await self._was_heard(queued, sock):
                    await self._has_attached(*waiting.pop(queued.client, (queued, None)))
        for queued, sock in waiting.values():
            self._listener.go_on(sock, queued)

    async def _was_heard(self, queued: QueuedSocket, sock: socket.socket) -> bool:
        try:
            return await end_passed(sock, queued, self._daemon)
        except ServerHungError as error:
            owner = self._owner_of(queued.pid) or Owner("", "")
            self._record.refused(queued.pid, AttachDenied(RefusedAttach.SERVER_HUNG, str(error), owner))
            return False

    async def _has_attached(self, queued: QueuedSocket, sock: socket.socket | None) -> None:
        """A client attached as its broker ended, whose connection that left."""
        held = self._held_by(queued.pid)
        if held is not None:
            new = self._clients.add(held.key, (queued.pid, queued.started))
            self._record.arrived(queued.pid, held.owner, held.container, new=new)
            self._pages.attached((queued.pid, queued.started), held.grant)
        if sock is not None:
            with sock:
                await farewell(sock)

    async def _leave_sockets(self) -> None:
        """Leaves another supervisor copies of the sockets, for the next broker."""
        keeper, own = self._supervisor(), self._listener.own
        try:
            if own is not None:
                await kept_sockets.keep(self.gpu, own)
                self._keeper = keeper
                self._problems.clear("keep")
        except (OSError, TimeoutError, ProtocolError) as error:
            text = "GPU %s: nobody keeps the sockets of clients, in case that this broker ends: %s"
            self._problems.log(text, self.gpu.uuid, _text(error), key="keep")
        finally:
            self._keeping = None

    def _supervisor(self) -> FileVersion | None:
        """Its socket for turns, another one for each supervisor; None: there is none."""
        return file_version(self.gpu.turns)

    def _container_of(self, pid: int) -> Container | None:
        """The container of a process, if it holds a part of the GPU."""
        held = self._held_by(pid)
        return None if held is None else held.key

    def _held_by(self, pid: int) -> AttachAdmitted | None:
        return self._grants.held_by(self._grants.named(pid, self._read_owners(pid) or ()))

    def _owner_of(self, pid: int) -> Owner | None:
        return next(iter(self._read_owners(pid) or ()), None)

    async def _look_at_list(self) -> None:
        """Whom the server lists: who never attached is told. Where that is not known now, what was told stays."""
        with suppress(OSError, TimeoutError, ProtocolError):
            async with self._attaching:  # the server may be waiting for a client meanwhile, and answer nobody
                self._looked_at = time.monotonic()
                if self._looked_at < self._restore_until:
                    await self._listed.restore()
                self._record.unattached = await self._listed.unattached()
                self._record.without_pages = self._listed.named(self._pages.late(self._listed.listed))
                self._look_at_places()

    def _look_at_places(self) -> None:
        """By the latest look at the server's list."""
        listed = {**self._listed.listed, **self._listed.ended}
        without = self._queue.look(listed, adopt=time.monotonic() < self._adopt_until)
        self._record.without_place = self._listed.named(
            process for process, container in listed.items() if container in without
        )

    def _note_places(self) -> None:
        """For the agent, and for the clients."""
        self._record.places, self._record.waits = self._queue.places(), self._queue.wait_times()
        self._record.queue, self._record.waiting = self._queue.queued(), self._queue.waiting
        if self._pages.board is not None:
            self._pages.board.show_places(self._queue.holders.limit)

    def _write_places(self) -> None:
        self._note_places()
        self._record.write()

    def _hung_up_on(self, pid: int, refused: AttachDenied) -> None:
        self._record.refused(pid, refused)

    def _cannot_accept(self, error: OSError) -> None:
        text = f"no connection can be accepted: {error.strerror or error}"
        self._record.failed(0, AttachDenied(RefusedAttach.FAILED, text))

    # One connection

    async def _serve(
        self, sock: socket.socket, peer: Peer, owners: Sequence[Owner], queued: QueuedSocket | None
    ) -> None:
        """`queued`: it came to an earlier broker. The next one has what the processes of each pod need, and no more: a
        pod that has many wait takes nobody's room."""
        owners = self._grants.named(peer.pid, owners)
        owner, under_way = owners[0] if owners else Owner("", ""), self._under_way()
        client = queued or self._client(peer, owner)
        most = max(self._grants.connections_needed().get(owner.pod_uid, 0), CONNECTIONS_OF_PROCESS)
        most = 0 if has_hung_up(sock) else most  # it only looked, or says no more than it has said
        with sock:
            try:
                with under_way.holding(sock, client, owner.pod_uid, most) as number:
                    request = await self._request(sock, peer, owner, again=queued is not None)
                    if request is Request.ATTACH:
                        client = replace(client, client=number)
                        if queued is None:
                            client = self._counted(client, owner)
                        if not await self._door.let_in(Asking(sock, peer, owners, client, under_way)):
                            self._hung_up(sock)
                match request:
                    case Request.STOPPING:
                        self._note_stopping(owners)
                    case Request.PAGES | Request.BUSY:
                        await plain(sock)
                        if await send_pages(sock, self._handed(sock, peer, owners, request)):
                            self._pages.mapped((peer.pid, peer.started or 0))
                    case Request.PLACE:
                        await plain(sock)
                        await self._give_place(sock, peer, owners)
            except AttachDeniedError as error:
                self._record.refused(peer.pid, error.refused)
            except CommandRefusedError as error:
                self._record.refused(peer.pid, AttachDenied(RefusedAttach.COMMAND, str(error), owner))
            except ProtocolError as error:
                self._record.refused(peer.pid, AttachDenied(RefusedAttach.PROTOCOL, str(error), owner))
            except OSError as error:
                if error.errno in GONE:
                    self._hung_up(sock)
                else:
                    self._record.failed(
                        peer.pid, AttachDenied(RefusedAttach.FAILED, error.strerror or str(error), owner)
                    )
            drop_unread(sock)

    async def _request(self, sock: socket.socket, peer: Peer, owner: Owner, *, again: bool) -> Request | None:
        """As `read_request`. A process that says nothing is noted: it begins `cuInit`."""
        if not self._queue.is_on or peer.started is None:
            return await read_request(sock, again=again)
        process = (peer.pid, peer.started)
        with self._looks.listening(process, sock) as counts:
            request = await read_request(sock, again=again)
            if request is None and counts() and not self._listener.gave_way(sock):
                self._looks.looked(process, owner.pod_uid)
        return request

    def _has_looked(self, sock: socket.socket) -> None:
        """A process had hung up before it was greeted."""
        if self._queue.is_on:
            peer, owners = self._listener.who(sock)
            if peer.started is not None and owners:
                self._looks.looked((peer.pid, peer.started), owners[0].pod_uid)

    def _client(self, peer: Peer, owner: Owner) -> QueuedSocket:
        """A connection as the next broker is to know it, if it goes on there. Whether it is a context's is known by
        what its process did before."""
        client = QueuedSocket(kind=QueuedKind.CLIENT, pid=peer.pid, started=peer.started or 0)
        if not self._queue.is_on or self._looks.has_looked((client.pid, client.started), owner.pod_uid):
            return client
        return replace(client, context=True, since=self._settings.clock())

    def _counted(self, client: QueuedSocket, owner: Owner) -> QueuedSocket:
        """It asks to attach."""
        if not self._queue.is_on:
            return client
        return replace(client, context=self._looks.is_context((client.pid, client.started), owner.pod_uid))

    async def _give_place(self, sock: socket.socket, peer: Peer, owners: Sequence[Owner]) -> None:
        """Answers PLACE, once more with each change, until the container has a place. Where this broker ends, the
        process asks the next one.
        """
        self._queue.follow(self._grants.now())
        held, state = self._grants.held_by(owners), PlaceState.NOT_NEEDED
        if held is not None and self._runs(sock, peer):
            try:
                waited = await self._queue.wait(sock, (peer.pid, peer.started or 0), held.key, tells=True)
            except NoPlaceError as error:
                send_now(sock, self._queue.answer(PlaceState.REFUSED).encode())
                denied = AttachDenied(RefusedAttach.NO_PLACE, str(error), held.owner, held.container)
                raise AttachDeniedError(denied) from error
            if waited is Waited.HUNG_UP:
                return
            state = PlaceState.GIVEN if waited is Waited.PLACE else PlaceState.NOT_NEEDED
        with suppress(BlockingIOError):  # it does not read what it was sent before, and sees the end
            send_now(sock, self._queue.answer(state).encode())

    def _runs(self, sock: socket.socket, peer: Peer) -> bool:
        """The process that connected does, as far as that is known, and no other one has its connection."""
        try:
            return peer.started is not None and not has_ended(sock, peer, self._settings.peer_option)
        except OSError:
            return False

    def _note_stopping(self, owners: Sequence[Owner]) -> None:
        """Of containers that hold a part of this GPU alone: others have no client that has to leave."""
        held = self._grants.held_by(owners)
        if held is not None:
            self._record.stopping(held.owner, held.container)

    def _handed(self, sock: socket.socket, peer: Peer, owners: Sequence[Owner], request: Request) -> Handed:
        held, nothing = self._grants.held_by(owners), Handed(PagesAnswer())
        process = (peer.pid, peer.started or 0)
        if held is None or not self._clients.has_attached(process) or not self._runs(sock, peer):
            return nothing
        if request is Request.BUSY:
            return self._pages.show_busy(process, held.grant)
        return self._pages.give(process, held.key, held.grant)

    def _under_way(self) -> UnderWay:
        return self._taken[0].under_way if self._taken is not None else self._listener.under_way

    def _hung_up(self, sock: socket.socket) -> None:
        if not self._listener.gave_way(sock):
            self._record.abandoned()
