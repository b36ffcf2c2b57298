"""The device nodes: each connection holds one context, or is an MPS server that admits clients."""

import itertools
import socket
import time
from collections.abc import Callable

from gpushare.simulation.cuda_errors import MPS_CONNECTION_FAILED
from gpushare.simulation.driver.failure_outcome import FailureCause
from gpushare.simulation.driver.gpu import Context, Kind, RefusedByDriver, SimulatedGpu
from gpushare.simulation.driver.loop import Connection, DriverLoop
from gpushare.simulation.driver.state import DriverState
from gpushare.simulation.wire import Message


class Device:
    """One GPU's node: its connections by context, and the servers by the tickets that they gave to clients."""

    def __init__(self, loop: DriverLoop, state: DriverState, gpu: SimulatedGpu) -> None:
        self.loop = loop
        self.state = state
        self.gpu = gpu
        self.owners: dict[int, DeviceConnection] = {}
        self.tickets: dict[int, DeviceConnection] = {}
        self.next_ticket = itertools.count(1).__next__

    def accept(self, sock: socket.socket) -> "DeviceConnection":
        return DeviceConnection(self, sock)

    def fail(self, cause: FailureCause, culprit: Context) -> None:
        """Apply `cause`, record its Xid, and send each failed context its error."""
        pids = {context.id: context.pid for context in self.gpu.contexts.values()}
        outcome = self.gpu.fail(cause, culprit, time.monotonic())
        named = 0
        if outcome.xid is not None:
            number, victim = outcome.xid
            named = pids.get(victim, culprit.pid)
            self.state.record_xid(self.gpu, number, named)
        server = self.owners.get(culprit.server or 0)
        if outcome.fatal and server is not None:
            server.send({"event": "fault", "pid": named})
        for context_id, error in outcome.errors.items():
            owner = self.owners[context_id]
            owner.send({"event": "error", "error": error})


class DeviceConnection(Connection):
    """Operations: identify, open, alloc, free, info, launch, sync, fault, close; for an MPS server open_server, admit,
    revoke, terminate, status, stick. A failed context answers everything with its error, as CUDA's sticky errors do."""

    def __init__(self, device: Device, sock: socket.socket) -> None:
        super().__init__(device.loop, sock)
        self.device = device
        self.gpu = device.gpu
        self.context: Context | None = None
        self.server: DeviceConnection | None = None
        self.ticket = 0
        # As a server: the grants of admitted clients by ticket, until their contexts are open, and the open ones.
        self.admissions: dict[int, Message] = {}
        self.admitted: dict[int, DeviceConnection] = {}
        self._operations: dict[str, Callable[[Message], Message | None]] = {
            "identify": lambda _: self._identity(),
            "open": self._open,
            "open_server": self._open_server,
            "admit": self._admit,
            "revoke": self._revoke,
            "terminate": self._terminate,
            "status": lambda _: {"faulted": self._alive().faulted},
            "stick": self._stick,
            "alloc": self._alloc,
            "free": self._free,
            "info": self._info,
            "launch": self._launch,
            "sync": self._sync,
            "fault": self._fault,
            "close": self._close,
        }

    def handle(self, message: Message) -> Message | None:
        if self.context is not None and self.context.error and message["op"] not in ("close", "launch"):
            return {"error": self.context.error}
        try:
            return self._operations[message["op"]](message)
        except RefusedByDriver as refused:
            return {"error": refused.code}

    def gone(self) -> None:
        for ticket in self.admissions:
            self.device.tickets.pop(ticket, None)
        if self.context is None:
            return
        if self.context.kind is Kind.SERVER:
            self.device.fail(FailureCause.SERVER_LOST, self.context)
        elif not self.context.error:
            self.device.fail(FailureCause.DEATH, self.context)
        self._leave()

    def notify_server(self, message: Message) -> None:
        if self.server is not None and self.server.sock.fileno() >= 0:
            self.server.send(message)

    def _leave(self) -> None:
        context, self.context = self.context, None
        if context is None:
            return
        self.gpu.close(context, time.monotonic())
        self.device.owners.pop(context.id, None)
        if self.server is not None:
            self.server.admitted.pop(self.ticket, None)
        self.notify_server({"event": "gone", "ticket": self.ticket, "pid": self.pid, "error": context.error})

    def _identity(self) -> Message:
        gpu = self.gpu
        return {
            "uuid": gpu.uuid,
            "minor": gpu.minor,
            "index": gpu.index,
            "product": gpu.product,
            "sms": gpu.sms,
            "memory_mib": gpu.memory_mib,
        }

    def _open(self, message: Message) -> Message:
        ticket = message.get("ticket")
        if ticket is None:
            self.context = self.gpu.open_compute(self.pid)
        else:
            self._open_admitted(ticket)
        assert self.context is not None  # noqa: S101 - narrows for the type checker
        self.device.owners[self.context.id] = self
        return {**self._identity(), "sms_enforced": self.context.sms}

    def _open_admitted(self, ticket: int) -> None:
        server = self.device.tickets.pop(ticket, None)
        if server is None or server.context is None:
            raise RefusedByDriver(MPS_CONNECTION_FAILED)
        admission = server.admissions.pop(ticket)
        try:
            self.context = self.gpu.open_client(self.pid, server.context, admission["threads"], admission["limit"])
        except RefusedByDriver:
            server.send({"event": "gone", "ticket": ticket, "pid": self.pid, "error": 0})
            raise
        self.server, self.ticket = server, ticket
        server.admitted[ticket] = self

    def _open_server(self, _: Message) -> Message:
        self.context = self.gpu.open_server(self.pid)
        self.device.owners[self.context.id] = self
        return {**self._identity(), "init_ms": self.device.state.delays.server_init_ms}

    def _admit(self, message: Message) -> Message:
        """A ticket by which the client opens its context, bound to this server and to the client's limits."""
        ticket = self.device.next_ticket()
        self.admissions[ticket] = {"threads": message["threads"], "limit": message["limit"]}
        self.device.tickets[ticket] = self
        return {"ticket": ticket, "init_ms": self.device.state.delays.client_init_ms}

    def _revoke(self, message: Message) -> Message:
        self.admissions.pop(message["ticket"], None)
        self.device.tickets.pop(message["ticket"], None)
        return {}

    def _terminate(self, message: Message) -> Message:
        client = self.admitted.get(message["ticket"])
        if client is None:
            return self._revoke(message)
        if client.context is not None and not client.context.error:
            self.device.fail(FailureCause.TERMINATED, client.context)
        return {}

    def _stick(self, _: Message) -> Message:
        self._alive().stuck = True
        return {}

    def _alive(self) -> Context:
        if self.context is None:
            raise KeyError("no context on this connection")
        return self.context

    def _alloc(self, message: Message) -> Message:
        return {"handle": self.gpu.allocate(self._alive(), int(message["bytes"]))}

    def _free(self, message: Message) -> Message:
        self._alive().allocations.pop(message["handle"], None)
        return {}

    def _info(self, _: Message) -> Message:
        return {"free": self.gpu.available(self._alive()), "total": self.gpu.memory_mib << 20}

    def _launch(self, message: Message) -> None:
        """No answer, since launches are asynchronous. Launches of a failed context are dropped."""
        context = self._alive()
        if not context.error:
            self.gpu.launch(context, float(message["ms"]), time.monotonic())

    def _sync(self, _: Message) -> Message:
        return {"remaining_ms": self._alive().remaining_ms(time.monotonic())}

    def _fault(self, message: Message) -> Message:
        self.device.fail(FailureCause(message["kind"]), self._alive())
        return {}

    def _close(self, _: Message) -> Message:
        self._leave()
        return {}
