"""A CUDA context on a simulated GPU, for machines without one. Standard library alone.

It behaves as CUDA does at its edges: the environment that it reads, the error of each call, the neighbours that a
failure takes along. It computes nothing: a kernel takes time but no processor.

A process that ends without `close` dies as a CUDA process does, even by a normal exit: in mid-kernel it takes its
neighbours along. A child forked after the first call can use neither its parent's context nor make one (error 3), and
connects to nobody, as in CUDA.
"""

import os
import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

from gpushare.mps import attach_protocol
from gpushare.simulation import cuda_errors, paths, place
from gpushare.simulation.wire import Channel, Disconnected, Message, connect

CONNECT_SECONDS = 600.0
"""A wedged server keeps a new client waiting for ever. This limit, and its error 805, are ours."""

FAULTS = ("illegal_address", "trap", "assert")
_VARIABLES = {
    "visible": "CUDA_VISIBLE_DEVICES",
    "threads": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "memory": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "priority": "CUDA_MPS_CLIENT_PRIORITY",
}
_PARTITIONING = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"
_live: "set[SimulatedContext]" = set()
"""Open contexts. One that is dropped without `close` stays open, as in CUDA."""
_initialized: "dict[str, tuple[int, Channel]]" = {}
"""(PID, the process' own connection to the MPS server) by pipe directory; of the process that was forked, too."""


class CudaError(Exception):
    """A CUDA runtime error: `code` is its number, `name` its spelling."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.name = cuda_errors.NAMES.get(code, "cudaErrorUnknown")
        super().__init__(f"{self.name} ({code})")


class SimulatedContext:
    """One context of this process. Every method may raise CudaError. After an error that ended the context, every later
    call raises the same error. For one thread at a time."""

    def __init__(self, device: Channel, session: Channel | None, opened: Message, visible_sms: int) -> None:
        self.uuid: str = opened["uuid"]
        self.product: str = opened["product"]
        self.sms = visible_sms
        self.total_sms: int = opened["sms"]
        self.sms_enforced: int = opened["sms_enforced"]
        self.under_mps = session is not None
        self._device = device
        self._session = session
        self._error = 0
        self._pid = os.getpid()
        device.on_event = self._failed
        _live.add(self)

    @classmethod
    def create(cls, environ: Mapping[str, str] = os.environ) -> "SimulatedContext":
        """A context under MPS if the control daemon of $CUDA_MPS_PIPE_DIRECTORY can be reached, else without MPS.

        CUDA does not say which; here `under_mps` does. Errors: 2 (the context does not fit the limit), 46 (the
        GPU's compute mode, or too many clients), 100 (no such device), 805, 808 (it waited too long for a place).
        """
        base = environ.get(paths.ENV_DIRECTORY) or paths.DEFAULT_DIRECTORY
        pipe = paths.pipe_directory(environ)
        try:
            initialize(environ)
            if not place.wait_for_place(pipe):
                raise CudaError(cuda_errors.MPS_MAX_CLIENTS)
            control = connect(f"{pipe}/control", CONNECT_SECONDS, socket.SOCK_SEQPACKET)
        except OSError:
            return cls._create_alone(base, environ.get("CUDA_VISIBLE_DEVICES"))
        session = Channel(_server_socket(control), lambda _: None)
        try:
            return cls._create_under_mps(base, session, environ)
        except CudaError:
            session.close()
            raise

    @classmethod
    def _create_alone(cls, base: str, visible: str | None) -> "SimulatedContext":
        device = _visible_device(base, visible)
        return cls._open(device, None, {"op": "open"}, None)

    @classmethod
    def _create_under_mps(cls, base: str, session: Channel, environ: Mapping[str, str]) -> "SimulatedContext":
        hello = _limits(environ)
        admitted = _ask(session, {"op": "hello", **hello}, cuda_errors.MPS_CONNECTION_FAILED)
        try:
            device = Channel(connect(paths.device_node(base, admitted["minor"]), CONNECT_SECONDS), lambda _: None)
        except OSError:
            raise CudaError(cuda_errors.NO_DEVICE) from None
        time.sleep(admitted["init_ms"] / 1000)
        shows_all = environ.get(_PARTITIONING) == "1" and "threads" not in hello
        request = {"op": "open", "ticket": admitted["ticket"]}
        return cls._open(device, session, request, admitted["sms"] if shows_all else None)

    @classmethod
    def _open(
        cls, device: Channel, session: Channel | None, request: Message, visible_sms: int | None
    ) -> "SimulatedContext":
        try:
            opened = _ask(device, request, cuda_errors.UNKNOWN)
        except CudaError:
            device.close()
            raise
        return cls(device, session, opened, opened["sms_enforced"] if visible_sms is None else visible_sms)

    def mem_get_info(self) -> tuple[int, int]:
        """(free, total) in bytes. `free` respects the limit; `total` is always the whole GPU."""
        answer = self._ask({"op": "info"})
        return answer["free"], answer["total"]

    def alloc(self, nbytes: int) -> int:
        """A handle for `nbytes` of GPU memory; error 2 above the limit or the GPU."""
        if nbytes <= 0:
            raise CudaError(cuda_errors.INVALID_VALUE)
        return int(self._ask({"op": "alloc", "bytes": nbytes})["handle"])

    def free(self, handle: int) -> None:
        self._ask({"op": "free", "handle": handle})

    def launch(self, milliseconds: float) -> None:
        """Queue a kernel that takes `milliseconds` on the whole GPU, and longer on fewer SMs. Does not wait."""
        self._check()
        try:
            self._device.receive_pending()
            self._device.send({"op": "launch", "ms": milliseconds})
        except Disconnected:
            self._error = self._error or cuda_errors.UNKNOWN
        self._check()

    def synchronize(self) -> None:
        """Wait until every kernel queued so far has ended, or the context has failed."""
        end = time.monotonic() + self._ask({"op": "sync"})["remaining_ms"] / 1000
        self._check()  # a failure that arrived together with the answer is not sent again
        while (left := end - time.monotonic()) > 0:
            try:
                if select.select([self._device], [], [], left)[0]:
                    self._device.receive()
            except Disconnected:
                self._error = self._error or cuda_errors.UNKNOWN
            self._check()

    def fault(self, kind: str) -> None:
        """Run a kernel that fails: `illegal_address`, `trap` or `assert`. The next call raises the error."""
        if kind not in FAULTS:
            raise ValueError(f"fault {kind!r} is none of {', '.join(FAULTS)}")
        self._ask({"op": "fault", "kind": kind})

    def close(self) -> None:
        """Wait for the queued kernels, then destroy the context. No-op if it is closed already; never raises."""
        if self not in _live:
            return
        if self._pid == os.getpid():
            with suppress(CudaError):
                self.synchronize()
            with suppress(Disconnected):
                self._device.ask({"op": "close"})
        _live.discard(self)
        self._device.close()
        if self._session is not None:
            self._session.close()

    def _ask(self, message: Message) -> Message:
        self._check()
        try:
            answer = _ask(self._device, message, cuda_errors.UNKNOWN)
        except CudaError as error:
            if error.code != cuda_errors.OUT_OF_MEMORY:
                self._error = error.code
            raise
        return answer

    def _check(self) -> None:
        if self._pid != os.getpid() or self not in _live:
            raise CudaError(cuda_errors.NOT_INITIALIZED)
        if self._error:
            raise CudaError(self._error)

    def _failed(self, event: Message) -> None:
        self._error = event["error"]


def initialize(environ: Mapping[str, str] = os.environ) -> None:
    """What `cuInit` does, once for each process: looks whether somebody listens, hangs up, and attaches the process,
    which no list shows before it has a context (measured). OSError: nobody listens. CudaError: 3, 805.
    """
    pipe = paths.pipe_directory(environ)
    pid, _ = _initialized.get(pipe, (0, None))
    if pid == os.getpid():
        return
    if pid:
        raise CudaError(cuda_errors.NOT_INITIALIZED)
    connect(f"{pipe}/control", CONNECT_SECONDS, socket.SOCK_SEQPACKET).close()
    control = connect(f"{pipe}/control", CONNECT_SECONDS, socket.SOCK_SEQPACKET)
    session = Channel(_server_socket(control), lambda _: None)
    try:
        _ask(session, {"op": "hello", "init": True, **_limits(environ)}, cuda_errors.MPS_CONNECTION_FAILED)
    except CudaError:
        session.close()
        raise
    _initialized[pipe] = os.getpid(), session


def _limits(environ: Mapping[str, str]) -> Message:
    return {key: environ[name] for key, name in _VARIABLES.items() if name in environ}


def _server_socket(control: socket.socket) -> socket.socket:
    """The socket to the MPS server that the daemon passes to a client. CudaError: it passes none (assumed: 805)."""
    with control:
        try:
            if control.recv(64):
                control.send(attach_protocol.CREDENTIALS)
                control.send(int(attach_protocol.Request.ATTACH).to_bytes(4, "little"))
                _, descriptors, _, _ = socket.recv_fds(control, 64, 1)
                if descriptors:
                    control.send(bytes(4))
                    server = socket.socket(fileno=descriptors[0])
                    server.settimeout(CONNECT_SECONDS)
                    return server
        except OSError:
            pass
    raise CudaError(cuda_errors.MPS_CONNECTION_FAILED)


def _ask(channel: Channel, message: Message, when_gone: int) -> Message:
    try:
        answer = channel.ask(message)
    except Disconnected:
        raise CudaError(when_gone) from None
    if answer.get("error"):
        raise CudaError(answer["error"])
    return answer


def _visible_device(base: str, visible: str | None) -> Channel:
    """The device that a process without MPS opens: the first of CUDA_VISIBLE_DEVICES, by index or UUID."""
    devices: list[tuple[str, Channel]] = []
    for node in paths.device_nodes(base):
        with suppress(OSError, Disconnected):
            channel = Channel(connect(node, CONNECT_SECONDS), lambda _: None)
            devices.append((channel.ask({"op": "identify"})["uuid"], channel))
    first = "0" if visible is None else visible.split(",")[0].strip()
    chosen = next((candidate for n, (uuid, candidate) in enumerate(devices) if first in (str(n), uuid)), None)
    for _, channel in devices:
        if channel is not chosen:
            channel.close()
    if chosen is None:
        raise CudaError(cuda_errors.NO_DEVICE)
    return chosen
