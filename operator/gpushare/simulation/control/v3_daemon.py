"""The simulated control daemon of MPS v3: one named server, and its namespaces.

A stand-in that is held to NVIDIA's documentation (docs/mps.md names its pages) and untested on hardware. It has servers
(one at a time), namespaces and clients, as far as gpushare uses them. Assumed, because no page says it: what is said on
the sockets (as in v2), the words of refusals (they begin with `Error`), and the exit status. That a namespace with
clients is not changed is what the sources of kai-scheduler/gpu-fractioning report of driver 615, and the harder case.
"""

import contextlib
import os
import re
import selectors
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpushare.simulation import limits
from gpushare.simulation.control.daemon import ControlConnection, ControlDaemon

NAME = re.compile(r"[a-z0-9_]{1,64}")
DEFAULT = "default"
SERVER_FIELDS = ("name", "uid", "pid", "status", "pipe-directory", "allowed-devices", "context-ids")
NAMESPACE_FIELDS = (
    "name",
    "server",
    "server-status",
    "pinned-memory-limit",
    "active-thread-percentage",
    "client-priority",
    "pipe-directory",
)
CHANGES = frozenset({"create", "delete", "set", "terminate", "quit"})


@dataclass(slots=True)
class Namespace:
    """The settings of one; None: not set. Without limits it gets the whole GPU (NVIDIA's guide for Dynamo)."""

    threads: float | None = None
    memory: str | None = None
    priority: int = 0
    listener: socket.socket | None = None

    def handed(self) -> dict[str, Any]:
        """The settings as the server gets them."""
        memory = limits.memory_value(self.memory) if self.memory else None
        return {
            "threads": limits.DEFAULT_THREADS if self.threads is None else self.threads,
            "threads_set": self.threads is not None,
            "memory": {} if memory is None else {"0": memory},
            "priority": self.priority,
        }


class WrongCommandError(Exception):
    """The text is the answer."""


class ControlDaemonV3(ControlDaemon):
    def __init__(self, pipe: str, log_directory: str | None, multiuser: bool) -> None:
        super().__init__(pipe, log_directory, multiuser)
        self._name = ""
        self._uid = 0
        self._namespaces: dict[str, Namespace] = {}
        self._server_listener: socket.socket | None = None

    # What differs from v2

    def _text(self, connection: ControlConnection, line: str) -> str:
        words = line.split("\x1f")
        try:
            return self._answer(words, connection.uid)
        except WrongCommandError as error:
            return f"Error: {error}\n"

    def _quits(self, connection: ControlConnection, words: list[str]) -> bool:
        """Quits without waiting for a client, and stops all servers (documented)."""
        if words != ["quit"] or connection.uid != 0:
            return False
        self._quit(connection, ["quit", "-t", "0", ""])
        return True

    def _handed(self, connection: ControlConnection) -> dict[str, Any]:
        name = connection.namespace or DEFAULT
        return {"namespace": name, "limits": self._namespaces[name].handed()}

    def _new_client(self, connection: ControlConnection) -> None:
        """A client of the daemon's own socket gets a server of its user (documented); that is not what we use."""
        if self._server is None and not self._name:
            self._create_server("auto", {})
        super()._new_client(connection)

    def _forget_server(self, code: int, was_ready: bool = True) -> None:
        """The server leaves the list (NVIDIA's guide for Dynamo), and its namespaces with it (assumed)."""
        super()._forget_server(code, was_ready)
        self._remove_server()

    # Commands

    def _answer(self, words: list[str], uid: int) -> str:
        positional = [word for word in words if not word.startswith("--")]
        options = dict(word.removeprefix("--").partition("=")[::2] for word in words if word.startswith("--"))
        command = self._commands().get(" ".join(positional[:2]))
        if command is None:
            raise WrongCommandError(f"unknown command {' '.join(positional[:2])!r}")
        if positional[1] in CHANGES and uid != 0:
            raise WrongCommandError(f"Insufficient privileges for UID {uid}.")
        return command(positional[2:], options)

    def _commands(self) -> dict[str, Callable[[list[str], dict[str, str]], str]]:
        return {
            "server create": lambda names, options: self._create_server(_only(names), options),
            "server delete": lambda names, options: self._delete_server(_only(names), options),
            "server list": lambda names, options: _table(SERVER_FIELDS, self._server_rows(names), options),
            "server set": lambda names, options: self._set(self._of(_only(names)), DEFAULT, options),
            "server get": lambda words, _: _field(SERVER_FIELDS[:6], self._server_rows(words[:1]), words[1:]),
            "namespace create": lambda names, options: self._create_namespace(_only(names), options),
            "namespace delete": lambda names, options: self._delete_namespace(_only(names), options),
            "namespace list": lambda names, options: _table(NAMESPACE_FIELDS, self._rows(names, options), options),
            "namespace set": lambda names, options: self._set_namespace(_only(names), options),
            "namespace get": lambda words, _: _field(
                NAMESPACE_FIELDS, self._rows(words[:1], {"server": words[1]} if words[1:] else {}), words[2:]
            ),
            "client list": lambda _, options: _table(
                ("pid", "server", "device", "namespace", "cmd"), self._clients(), options
            ),
            "client terminate": lambda pids, _: self._terminate(_only(pids)),
        }

    def _of(self, server: str | None) -> str:
        if not server or server != self._name:
            raise WrongCommandError(f"server {server!r} not found")
        return server

    def _create_server(self, name: str, options: dict[str, str]) -> str:
        _check_name(name)
        uid = int(options.get("uid", "0"))
        if self._multiuser and uid != 0:
            raise WrongCommandError("in multiuser mode only --uid=0 is allowed")
        if self._name:
            raise WrongCommandError(
                f"server {name!r} already exists" if name == self._name else "this stand-in has one server"
            )
        self._name, self._uid = name, uid
        self._namespaces = {DEFAULT: Namespace()}
        self._server_listener = self._listen(name, "")
        self._namespaces[DEFAULT].listener = self._listen(f"{name}/{DEFAULT}", DEFAULT)
        self.start_server(uid)
        return ""

    def _delete_server(self, name: str, options: dict[str, str]) -> str:
        self._of(name)
        if "force" not in options and self._clients():
            raise WrongCommandError(f"server {name!r} has active clients")
        if self._server is None:
            self._remove_server()
        self.stop_server()
        return ""

    def _remove_server(self) -> None:
        for listener in (self._server_listener, *(namespace.listener for namespace in self._namespaces.values())):
            self._close_listener(listener)
        if self._name:
            shutil.rmtree(f"{self._pipe}/{self._name}", ignore_errors=True)
        self._name, self._namespaces, self._server_listener = "", {}, None

    def _server_rows(self, names: list[str]) -> list[list[str]]:
        if not self._name or (names and names[0] != self._name):
            return []
        pid = "-" if self.server_pid is None else str(self.server_pid)
        allowed = os.environ.get("CUDA_VISIBLE_DEVICES") or "-"
        return [[self._name, str(self._uid), pid, self._status(), f"{self._pipe}/{self._name}", allowed, "-"]]

    def _status(self) -> str:
        """`Ready` alone is documented; the word for a faulted server is assumed."""
        if self.server_pid is None:
            return "Stopped"
        return "Fault" if self.ask_server({"op": "status"})["faulted"] else "Ready"

    def _create_namespace(self, name: str, options: dict[str, str]) -> str:
        server = self._of(options.get("server"))
        _check_name(name)
        if name in self._namespaces:
            raise WrongCommandError(f"namespace {name!r} already exists")
        self._namespaces[name] = Namespace(listener=self._listen(f"{server}/{name}", name))
        return ""

    def _delete_namespace(self, name: str, options: dict[str, str]) -> str:
        server = self._of(options.get("server"))
        namespace = self._namespace(name)
        if "force" not in options and self._has_clients(name):
            raise WrongCommandError(f"namespace {name!r} has active clients")
        self._close_listener(namespace.listener)
        del self._namespaces[name]
        shutil.rmtree(f"{self._pipe}/{server}/{name}", ignore_errors=True)
        return ""

    def _set_namespace(self, name: str, options: dict[str, str]) -> str:
        server = self._of(options.pop("server", None))
        if self._has_clients(name):
            raise WrongCommandError(f"namespace {name!r} has active clients")
        return self._set(server, name, options)

    def _set(self, _: str, name: str, options: dict[str, str]) -> str:
        namespace = self._namespace(name)
        if not options:
            raise WrongCommandError("at least one option is required")
        for option, value in options.items():
            match option:
                case "active-thread-percentage" if (threads := limits.percentage(value)) is not None and threads >= 1:
                    namespace.threads = threads
                case "pinned-memory-limit" if re.fullmatch(r"[0-9]+[GMK]", value):
                    namespace.memory = value
                case "client-priority" if value in ("0", "1"):
                    namespace.priority = int(value)
                case _:
                    raise WrongCommandError(f"invalid option --{option}={value}")
        return ""

    def _namespace(self, name: str) -> Namespace:
        if name not in self._namespaces:
            raise WrongCommandError(f"namespace {name!r} not found")
        return self._namespaces[name]

    def _rows(self, names: list[str], options: dict[str, str]) -> list[list[str]]:
        """How an unset limit is shown is assumed."""
        if "server" in options:
            self._of(options["server"])
        status = self._status() if self._name else ""
        return [
            [
                name,
                self._name,
                status,
                namespace.memory or "-",
                f"{100.0 if namespace.threads is None else namespace.threads:.2f}",
                str(namespace.priority),
                f"{self._pipe}/{self._name}/{name}",
            ]
            for name, namespace in self._namespaces.items()
            if not names or name == names[0]
        ]

    def _clients(self) -> list[list[str]]:
        if self.server_pid is None:
            return []
        clients = self.ask_server({"op": "clients"})["clients"]
        return [
            [str(client["pid"]), self._name, "0", client["namespace"], _command_line(client["pid"])]
            for client in clients
        ]

    def _has_clients(self, namespace: str) -> bool:
        return any(row[3] == namespace for row in self._clients())

    def _terminate(self, pid: str) -> str:
        if (
            not pid.isdecimal()
            or self.server_pid is None
            or not self.ask_server({"op": "terminate", "pid": int(pid)})["found"]
        ):
            raise WrongCommandError(f"client {pid} not found")
        return ""

    # Sockets

    def _listen(self, path: str, namespace: str) -> socket.socket:
        os.makedirs(f"{self._pipe}/{path}", exist_ok=True)  # noqa: PTH103
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._pipe}/{path}/control")  # noqa: PTH108
        listener.bind(f"{self._pipe}/{path}/control")
        os.chmod(f"{self._pipe}/{path}/control", 0o666)  # noqa: PTH101, S103 - as the daemon's own socket
        listener.listen(128)
        self._selector.register(listener, selectors.EVENT_READ, self._acceptor(listener, False, namespace))
        return listener

    def _close_listener(self, listener: socket.socket | None) -> None:
        if listener is not None:
            self._selector.unregister(listener)
            listener.close()


def _only(names: list[str]) -> str:
    if len(names) != 1:
        raise WrongCommandError("one name is required")
    return names[0]


def _check_name(name: str) -> None:
    if NAME.fullmatch(name) is None:
        raise WrongCommandError(
            f"{name!r} is no name: lowercase letters, digits, and underscores only, up to 64 characters"
        )


def _table(fields: tuple[str, ...], rows: list[list[str]], options: dict[str, str]) -> str:
    form, _, header = options.get("format", "table").partition(",")
    titles = [] if header == "noheader" else [[field.upper() for field in fields]]
    separator = "," if form == "csv" else "  "
    return "".join(separator.join(row) + "\n" for row in [*titles, *rows])


def _field(fields: tuple[str, ...], rows: list[list[str]], wanted: list[str]) -> str:
    if not rows or len(wanted) != 1 or wanted[0] not in fields:
        raise WrongCommandError("no such server, namespace or field")
    return rows[0][fields.index(wanted[0])] + "\n"


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline") as file:  # noqa: PTH123
            return file.read().replace("\0", " ").strip()
    except OSError:
        return ""
