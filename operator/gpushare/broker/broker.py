"""The attach broker of one MPS pod: listens where client containers connect, and attaches them to the MPS daemons.

Guarantees: `attach/control` of a GPU listens exactly while the pod's supervisor lets clients in (`client/control` is
there, and `client/share` names the share). A broker that starts again takes the name over without a moment in which
there is none, since a CUDA process that finds no socket runs without MPS, silently. Connections are bounded, in all
and for each cgroup, so that one container cannot keep others from attaching. The broker's end harms no running client:
after an attach no connection of theirs is left.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gpushare.broker.attach import AttachRefusedError, attach, read_greeting, read_request
from gpushare.broker.packets import Peer, peer_of
from gpushare.kube.changes import LogOnChange
from gpushare.mps.attach_protocol import ProtocolError
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir, gpu_dirs
from gpushare.mps.wire import BrokerState

LOG = logging.getLogger(__name__)
SCAN_SECONDS = 0.5
"""How soon a change of the supervisor's link is followed."""
BACKLOG = 128
MAX_CONNECTIONS = 256
"""At once. A GPU takes at most 60 contexts; each attaches over one connection, after one that only looks."""
MAX_CONNECTIONS_PER_CGROUP = 64
_NEW = ".control.new"


async def serve(root: Path, share: str, clock: Callable[[], float]) -> None:
    """Brokers for every GPU below `root` whose clients `share` lets in. Runs until cancelled.

    `clock`: CLOCK_BOOTTIME seconds.
    """
    brokers: dict[str, Broker] = {}
    try:
        while True:
            for gpu in gpu_dirs(root):
                if gpu.uuid not in brokers and _lets_in(gpu, share):
                    brokers[gpu.uuid] = Broker(gpu, share, clock)
            # At the same time: a wedged daemon takes DAEMON_SECONDS, and the others' heartbeats must not wait in line.
            await asyncio.gather(*(broker.step() for broker in brokers.values()))
            for uuid in [uuid for uuid, broker in brokers.items() if not broker.gpu.path.exists()]:
                await brokers.pop(uuid).close()
            await asyncio.sleep(SCAN_SECONDS)
    finally:
        for broker in brokers.values():
            await broker.close()


def _lets_in(gpu: GpuDir, share: str) -> bool:
    try:
        return gpu.client_control.exists() and gpu.client_share.read_text() == share
    except OSError:
        return False


class Broker:
    """Of one GPU. `proc`: the /proc of the PID namespace that peers' PIDs count in. `clock`: CLOCK_BOOTTIME seconds."""

    def __init__(self, gpu: GpuDir, share: str, clock: Callable[[], float], proc: Path = Path("/proc")) -> None:
        self.gpu = gpu
        self._share = share
        self._clock = clock
        self._proc = proc
        self._listener: socket.socket | None = None
        self._inode = 0
        self._greeting = b""
        self._connections: set[asyncio.Task[None]] = set()
        self._by_cgroup: Counter[str] = Counter()
        self._attached = 0
        self._refused = 0
        self._problem = ""
        self._problems = LogOnChange(LOG)

    async def step(self) -> None:
        """Opens or closes the socket as the supervisor wants it, and writes broker.json while it is open."""
        wanted = _lets_in(self.gpu, self._share)
        if self._listener is not None and not (wanted and self._is_named()):
            self._stop_listening(remove=not wanted)
        if wanted and self._listener is None:
            await self._open()
        if wanted:
            self._write_state()

    async def close(self) -> None:
        """Gives up the connections under way. The name stays, for the next broker to take over."""
        self._stop_listening(remove=False)
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _is_named(self) -> bool:
        """Whether the name that containers see is of this broker's socket."""
        try:
            return self.gpu.attach_control.stat().st_ino == self._inode
        except OSError:
            return False

    async def _open(self) -> None:
        try:
            self._greeting = await read_greeting(self._connect)
            self._listen()
            self._problem = ""
            self._problems.clear("open")
        except (OSError, TimeoutError, ProtocolError) as error:
            self._problem = f"the MPS daemon cannot be reached: {str(error) or type(error).__name__}"
            self._problems.log("GPU %s: %s", self.gpu.uuid, self._problem, key="open")

    def _listen(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            new = self.gpu.attach / _NEW
            new.unlink(missing_ok=True)
            listener.bind(str(new))
            new.chmod(0o666)
            listener.listen(BACKLOG)
            listener.setblocking(False)
            self._inode = new.stat().st_ino
            new.replace(self.gpu.attach_control)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        LOG.info("GPU %s: containers attach at %s", self.gpu.uuid, self.gpu.attach_control)

    def _stop_listening(self, *, remove: bool) -> None:
        if self._listener is None:
            return
        asyncio.get_running_loop().remove_reader(self._listener)
        if remove and self._is_named():
            self.gpu.attach_control.unlink(missing_ok=True)
            LOG.info("GPU %s: no container attaches any more", self.gpu.uuid)
        self._listener.close()
        self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:  # it hung up before, or we are out of descriptors: the next one is tried anew
            return
        sock.setblocking(False)
        peer = peer_of(sock)
        cgroup = _cgroup(self._proc, peer.pid)
        if len(self._connections) >= MAX_CONNECTIONS or self._by_cgroup[cgroup] >= MAX_CONNECTIONS_PER_CGROUP:
            self._refused += 1
            sock.close()
            return
        self._by_cgroup[cgroup] += 1
        task = asyncio.create_task(self._serve(sock, peer))
        self._connections.add(task)
        task.add_done_callback(lambda done: self._ended(done, cgroup))

    def _ended(self, task: "asyncio.Task[None]", cgroup: str) -> None:
        self._connections.discard(task)
        self._by_cgroup[cgroup] -= 1
        if self._by_cgroup[cgroup] <= 0:
            del self._by_cgroup[cgroup]

    async def _serve(self, sock: socket.socket, peer: Peer) -> None:
        with sock:
            try:
                if await read_request(sock, self._greeting):
                    await attach(sock, self._greeting, self._connect)
                    self._attached += 1
            except (AttachRefusedError, ProtocolError) as error:
                self._refused += 1
                LOG.warning("GPU %s: PID %d of UID %d is refused: %s", self.gpu.uuid, peer.pid, peer.uid, error)
            except (OSError, TimeoutError) as error:
                LOG.debug("GPU %s: PID %d: %s", self.gpu.uuid, peer.pid, str(error) or type(error).__name__)

    async def _connect(self) -> socket.socket:
        """A connection to the MPS daemon. On this kind of socket connect(2) either succeeds at once or fails."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            while True:
                try:
                    sock.connect(str(self.gpu.client_control))
                    return sock
                except BlockingIOError:  # its backlog is full
                    await asyncio.sleep(0.05)
        except BaseException:
            sock.close()
            raise

    def _write_state(self) -> None:
        state = BrokerState(
            uuid=self.gpu.uuid,
            heartbeat=self._clock(),
            listening=self._listener is not None,
            attached=self._attached,
            refused=self._refused,
            problem=self._problem,
        )
        try:
            write_model(self.gpu.broker_state, state, mode=0o644)  # the agent has no capability to read past it
            self._problems.clear("state")
        except OSError as error:
            name = self.gpu.broker_state.name
            self._problems.log("GPU %s: %s cannot be written: %s", self.gpu.uuid, name, error, key="state")


def _cgroup(proc: Path, pid: int) -> str:
    """The peer's cgroup as one line of text; empty where it cannot be read, so that such peers share one bound."""
    try:
        return (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""
