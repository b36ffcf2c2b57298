"""The attach broker of one GPU: listens where client containers connect, and attaches them to the MPS daemon.

Guarantees: `attach/control` listens exactly while the supervisor lets clients in (its link `client/control` is there).
A broker that starts again takes the name over without a moment in which there is none, since a CUDA process that finds
no socket runs without MPS, silently. Connections are bounded, in all and for each cgroup, so that one container cannot
keep others from attaching. The broker's end harms no running client: after an attach no connection of theirs is left.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gpushare.broker.attach import RefusedError, attach, read_greeting, read_request
from gpushare.broker.packets import Peer, peer_of
from gpushare.mps.attach_protocol import ProtocolError
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import BrokerState

LOG = logging.getLogger(__name__)
POLL_SECONDS = 0.5
"""How soon the supervisor's link is followed."""
BACKLOG = 128
MAX_CONNECTIONS = 256
"""At once. A GPU takes at most 60 contexts; each attaches over one connection, after one that only looks."""
MAX_CONNECTIONS_PER_CGROUP = 64
_NEW = ".control.new"


class Broker:
    """`proc`: the /proc of the PID namespace that peers' PIDs count in. `clock`: CLOCK_BOOTTIME seconds."""

    def __init__(self, gpu: GpuDir, clock: Callable[[], float], proc: Path = Path("/proc")) -> None:
        self._gpu = gpu
        self._clock = clock
        self._proc = proc
        self._listener: socket.socket | None = None
        self._greeting = b""
        self._connections: set[asyncio.Task[None]] = set()
        self._by_cgroup: Counter[str] = Counter()
        self._attached = 0
        self._refused = 0
        self._problem = ""

    async def run(self) -> None:
        """Follows the supervisor's link until cancelled."""
        try:
            while True:
                await self.step()
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._close(remove=False)
            for task in list(self._connections):
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def step(self) -> None:
        """Opens or closes the socket as the supervisor wants it, and writes broker.json."""
        wanted = self._gpu.client_control.exists()
        if wanted and self._listener is None:
            await self._open()
        elif not wanted and self._listener is not None:
            self._close(remove=True)
        self._write_state()

    async def _open(self) -> None:
        try:
            self._greeting = await read_greeting(self._connect)
            self._listen()
            self._problem = ""
        except (OSError, TimeoutError, ProtocolError) as error:
            problem = f"the MPS daemon cannot be reached: {error or type(error).__name__}"
            if problem != self._problem:
                LOG.warning("GPU %s: %s", self._gpu.uuid, problem)
            self._problem = problem

    def _listen(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            new = self._gpu.attach / _NEW
            new.unlink(missing_ok=True)
            listener.bind(str(new))
            new.chmod(0o666)
            listener.listen(BACKLOG)
            listener.setblocking(False)
            new.replace(self._gpu.attach_control)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        LOG.info("GPU %s: containers attach at %s", self._gpu.uuid, self._gpu.attach_control)

    def _close(self, *, remove: bool) -> None:
        if self._listener is None:
            return
        asyncio.get_running_loop().remove_reader(self._listener)
        if remove:
            self._gpu.attach_control.unlink(missing_ok=True)
            LOG.info("GPU %s: no container attaches any more", self._gpu.uuid)
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
            except (RefusedError, ProtocolError) as error:
                self._refused += 1
                LOG.warning("GPU %s: PID %d of UID %d is refused: %s", self._gpu.uuid, peer.pid, peer.uid, error)
            except (OSError, TimeoutError) as error:
                LOG.debug("GPU %s: PID %d: %s", self._gpu.uuid, peer.pid, error or type(error).__name__)

    async def _connect(self) -> socket.socket:
        """A connection to the MPS daemon. On this kind of socket connect(2) either succeeds at once or fails."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            while True:
                try:
                    sock.connect(str(self._gpu.client_control))
                    return sock
                except BlockingIOError:  # its backlog is full
                    await asyncio.sleep(0.05)
        except BaseException:
            sock.close()
            raise

    def _write_state(self) -> None:
        state = BrokerState(
            uuid=self._gpu.uuid,
            heartbeat=self._clock(),
            listening=self._listener is not None,
            attached=self._attached,
            refused=self._refused,
            problem=self._problem,
        )
        try:
            write_model(self._gpu.broker_state, state)
        except OSError as error:
            LOG.warning("GPU %s: %s cannot be written: %s", self._gpu.uuid, self._gpu.broker_state.name, error)


def _cgroup(proc: Path, pid: int) -> str:
    """The peer's cgroup as one line of text; empty where it cannot be read, so that such peers share one bound."""
    try:
        return (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""
