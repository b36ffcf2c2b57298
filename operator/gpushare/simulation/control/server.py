"""nvidia-cuda-mps-server: the simulated MPS server, a child of the simulated control daemon.

It holds the GPU, decides each client's limits, and counts clients. Its clients' contexts live in the driver and are
bound to this process: they end with it (806), and continue while it is stopped. It ends with its control daemon.
"""

import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpushare.simulation import limits
from gpushare.simulation.control.gpu import open_gpu
from gpushare.simulation.control.mps_log import MpsLog
from gpushare.simulation.control.server_process import ENV_DESCRIPTOR, PACKET_LIMIT
from gpushare.simulation.cuda_errors import NO_DEVICE, UNAVAILABLE
from gpushare.simulation.wire import LINE_LIMIT, Disconnected, Message, encode, receive_with_pid


class Session:
    """A client's connection. `ticket`: the driver's name for its context."""

    def __init__(self, sock: socket.socket, pid: int, context: int, namespace: str = "") -> None:
        """`namespace`: of MPS v3."""
        self.sock = sock
        self.pid = pid
        self.context = context
        self.namespace = namespace
        self.ticket = 0
        self.terminated = False

    @property
    def name(self) -> str:
        return f"{{PID: {self.pid}, Context ID: {self.context}}}"


class MpsServer:
    def __init__(self, control: socket.socket, settings: dict[str, Any], log: MpsLog) -> None:
        self.log = log
        self._control = control
        self._settings = settings
        self._sessions: dict[int, Session] = {}
        self._processes: dict[socket.socket, tuple[int, float, int | None]] = {}
        """Processes after `cuInit`: no clients yet, and in no list. Each one's PID, and the threads and memory limit to
        which it is bound from then on (measured)."""
        self._awaited_end: int | None = None
        self._selector = selectors.DefaultSelector()
        self._driver = open_gpu(settings["visible"], self._on_driver_event)
        self._gpu = self._driver.ask({"op": "open_server"})
        self._ready_at: float | None = time.monotonic() + self._gpu.get("init_ms", 0) / 1000
        self._operations: dict[str, Callable[[Message], Message | None]] = {
            "status": lambda _: self._driver.ask({"op": "status"}),
            "clients": self._clients,
            "device": lambda _: {"uuid": self._gpu["uuid"], "product": self._gpu["product"]},
            "settings": lambda _: {name: settings[name] for name in ("threads", "memory", "priority")},
            "set": self._set,
            "terminate": self._terminate,
        }

    @property
    def refused(self) -> int:
        """The CUDA error with which the driver refused this server; 0: none."""
        return int(self._gpu.get("error", 0))

    def run(self) -> None:
        """Runs until the control daemon or the driver ends, which raises Disconnected or OSError."""
        self._control.setblocking(False)
        self._selector.register(self._control, selectors.EVENT_READ, self._control_readable)
        self._selector.register(self._driver, selectors.EVENT_READ, self._driver.receive_pending)
        while True:
            timeout = None if self._ready_at is None else max(0.0, self._ready_at - time.monotonic())
            for key, _ in self._selector.select(timeout):
                key.data()
            if self._ready_at is not None and time.monotonic() >= self._ready_at:
                self._ready_at = None
                self.log.write("Server has started")
                self._send_control({"event": "ready"})

    def _control_readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, PACKET_LIMIT, 1)
        except BlockingIOError:
            return
        if not data:
            raise Disconnected("the control daemon is gone")
        message = json.loads(data)
        if descriptors:
            self._await_hello(socket.socket(fileno=descriptors[0]), message)
        else:
            answer = self._operations[message["op"]](message)
            if answer is not None:
                self._send_control(answer)

    def _send_control(self, message: Message) -> None:
        self._control.send(json.dumps(message).encode())

    def _clients(self, _: Message) -> Message:
        return {
            "clients": [
                {"pid": session.pid, "context": session.context, "namespace": session.namespace}
                for session in self._sessions.values()
            ]
        }

    def _set(self, message: Message) -> Message:
        self._settings.update({name: value for name, value in message.items() if name != "op"})
        return {}

    def _terminate(self, message: Message) -> Message | None:
        """End all contexts of a process: its calls fail with 810, and it stays listed until it ends.

        A second request for the same process is answered only once the process has ended, and hangs the control daemon
        until then. So is a request after a fatal fault, and then the server stays faulted for good (all measured).
        """
        doomed = [listed for listed in self._sessions.values() if listed.pid == message["pid"]]
        faulted = self._driver.ask({"op": "status"})["faulted"]
        if faulted:
            self._driver.ask({"op": "stick"})
        if doomed and (faulted or all(session.terminated for session in doomed)):
            self._awaited_end = message["pid"]
            return None
        for session in doomed:
            self.log.write(f"Terminating client {session.name}")
            session.terminated = True
            self._driver.ask({"op": "terminate", "ticket": session.ticket})
        return {"found": bool(doomed)}

    def _await_hello(self, sock: socket.socket, handed: Message) -> None:
        """The client says first who it is, with credentials that the kernel vouches for.

        The server does nothing else until then, without a time limit. A client that says something else, or a part of
        it, is awaited until it hangs up; one that hangs up without a word is awaited for ever (all measured).
        """
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._control, 0)  # its end alone
        spoken = False
        while True:
            events = dict(poll.poll())
            if self._control.fileno() in events:
                raise Disconnected("the control daemon is gone")
            try:
                data, pid = receive_with_pid(sock, LINE_LIMIT)
            except OSError:
                data, pid = b"", 0
            with suppress(ValueError):
                hello = json.loads(data)
                break
            spoken = spoken or bool(data)
            if events[sock.fileno()] & select.POLLHUP:
                if spoken:
                    sock.close()
                    return
                poll.unregister(sock)
        sock.setblocking(False)
        self._new_client(sock, pid, hello, handed)

    def _new_client(self, sock: socket.socket, pid: int, hello: Message, handed: Message) -> None:
        self.log.write(f"Received new client request for {{PID: {pid}, Context ID: 0}}")
        answer = self._admit(sock, pid, hello, handed)
        try:
            sock.send(encode(answer))
        except OSError:
            answer = {"error": answer.get("error", NO_DEVICE)}
            self._end_of_sock(sock)
        if "error" in answer:
            sock.close()
        elif hello.get("init"):
            self._selector.register(sock, selectors.EVENT_READ, lambda: self._process_readable(sock))

    def _process_readable(self, sock: socket.socket) -> None:
        try:
            if sock.recv(LINE_LIMIT):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        del self._processes[sock]
        self._selector.unregister(sock)
        sock.close()

    def _admit(self, sock: socket.socket, pid: int, hello: Message, handed: Message) -> Message:
        """`handed`: what the daemon said of the client; under MPS v3 its namespace and the limits of that."""
        if not hello.get("init") and len(self._sessions) >= limits.CLIENT_CEILING:
            self.log.write(f"Failed to accept new client. Maximum number of clients ({limits.CLIENT_CEILING}) reached.")
            return {"error": UNAVAILABLE}
        if not limits.sees_device(hello.get("visible"), self._gpu["uuid"]):
            return {"error": NO_DEVICE}
        process = self._process(pid, hello, handed)
        if hello.get("init"):
            self._processes[sock] = process
            return {}
        _, threads, limit = process
        admitted = self._driver.ask({"op": "admit", "threads": threads, "limit": limit})
        context = 1 + sum(1 for listed in self._sessions.values() if listed.pid == pid)
        session = Session(sock, pid, context, handed.get("namespace", ""))
        session.ticket = admitted["ticket"]
        self._sessions[session.ticket] = session
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._session_readable(session))
        self._log_admission(session, threads, limit)
        return {**admitted, "minor": self._gpu["minor"], "sms": self._gpu["sms"]}

    def _process(self, pid: int, hello: Message, handed: Message) -> tuple[int, float, int | None]:
        """The process of that PID; one that attached to no server, or to another one, as if it attached now."""
        known = [process for process in self._processes.values() if process[0] == pid]
        if known and not hello.get("init"):
            return known[-1]
        settings = handed.get("limits") or self._settings
        # MPS v3: the namespace's percentage overrides the client's own (NVIDIA's documentation).
        own_threads = None if "limits" in handed and handed["limits"]["threads_set"] else hello.get("threads")
        threads = limits.client_threads(settings["threads"], own_threads)
        default = limits.device_limit(settings["memory"], 0, self._gpu["uuid"])
        limit = limits.client_memory(default, hello.get("memory"), self._gpu["uuid"])
        return pid, threads, limit

    def _log_admission(self, session: Session, threads: float, limit: int | None) -> None:
        """Together with the lines at its end about 1.7 KB for each client, as much as the real server writes."""
        initial = f"{{PID: {session.pid}, Context ID: 0}}"
        for line in (
            f"Client {initial} connected",
            f"Creating worker thread for client {initial}",
            f"Received new client request for {session.name}",
            f"Client {session.name} connected",
            f"Creating worker thread for client {session.name}",
            f"Device {self._gpu['product']} (uuid {self._gpu['uuid']}) is associated",
            f"Active thread percentage of client {session.name} is {threads}",
            f"Memory limit of client {session.name} is {limits.memory_text(limit).strip() or 'not set'}",
            f"Status of client {session.name} is ACTIVE",
        ):
            self.log.write(line)

    def _session_readable(self, session: Session) -> None:
        if session.ticket not in self._sessions:  # the driver has reported its end in this same round
            return
        try:
            if session.sock.recv(LINE_LIMIT):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._driver.ask({"op": "revoke", "ticket": session.ticket})
        self._forget(session)

    def _end_of_sock(self, sock: socket.socket) -> None:
        self._processes.pop(sock, None)
        for session in [candidate for candidate in self._sessions.values() if candidate.sock is sock]:
            self._forget(session)

    def _on_driver_event(self, event: Message) -> None:
        """A client's context is gone, or a fatal fault arrived."""
        if event["event"] == "fault":
            # The wording is assumed; that it names an innocent client is measured.
            self.log.write(f"Client {{PID: {event['pid']}, Context ID: 1}} encountered a fatal GPU error.")
            return
        session = self._sessions.get(event["ticket"])
        if session is not None:
            self._forget(session)

    def _forget(self, session: Session) -> None:
        if self._sessions.pop(session.ticket, None) is None:
            return
        self._selector.unregister(session.sock)
        session.sock.close()
        left = len(self._sessions)
        initial = f"{{PID: {session.pid}, Context ID: 0}}"
        for line in (
            # "recevie" is how MPS spells it.
            f"Server failed to recevie command with status 806, assuming client {session.name} exit",
            f"Client {session.name} exiting. Number of active client contexts is {left}.",
            f"Server failed to recevie command with status 806, assuming client {initial} exit",
            f"Client process {session.pid} disconnected",
        ):
            self.log.write(line)
        if self._awaited_end == session.pid and not any(other.pid == session.pid for other in self._sessions.values()):
            self._awaited_end = None
            self._send_control({"found": True})
        self._send_control({"event": "gone", "pid": session.pid, "left": len(self._sessions)})


def main() -> int:
    if ENV_DESCRIPTOR not in os.environ:
        print(f"{sys.argv[0]} is started by nvidia-cuda-mps-control")
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(os.environ[ENV_DESCRIPTOR]))
    settings = json.loads(control.recv(PACKET_LIMIT))
    log = MpsLog(settings["log_directory"], "server.log", "Other")
    log.write("Startup")
    log.write(f"Connecting to control daemon on socket: {settings['pipe_directory']}/control")
    log.write("Initializing server process")
    log.role = "Server"
    try:
        server = MpsServer(control, settings, log)
        if server.refused:
            log.write("Failed to start : CUDA-capable device(s) is/are busy or unavailable")
            return 1
        server.run()
    except (Disconnected, OSError) as error:
        log.write(f"Server exit: {error}")
    return 1
