"""The control commands of MPS v2 on driver 580, and the answer to each.

Measured, including the answers to a missing argument and to an unknown command, and that through the clients' socket
UID 0 may command the server but not change the daemon's defaults. Assumed: the answers to malformed numbers other than
percentages.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpushare.simulation import limits

OF_THE_DAEMON = frozenset(
    {"set_default_active_thread_percentage", "set_default_device_pinned_mem_limit", "set_default_client_priority"}
)
"""Accepted through the privileged socket alone."""
OF_THE_SERVER = frozenset(
    {
        "start_server",
        "shutdown_server",
        "terminate_client",
        "set_active_thread_percentage",
        "set_device_pinned_mem_limit",
    }
)
"""Accepted from UID 0 through either socket."""
REFUSED_AFTER = {"terminate_client": "800\n"}
"""Printed after the refusal: a CUDA error."""


@dataclass(slots=True)
class DaemonSettings:
    """The daemon's settings for the next server, and a server's for its next clients. Memory in bytes by device."""

    threads: float = limits.DEFAULT_THREADS
    memory: dict[str, int] = field(default_factory=dict)
    priority: int = 0

    def set_memory(self, device: str, text: str) -> None:
        value = limits.memory_value(text)
        if value is None:
            self.memory.pop(device, None)
        else:
            self.memory[device] = value


class Daemon(Protocol):
    """The part of the control daemon that the commands use."""

    settings: DaemonSettings

    @property
    def server_pid(self) -> int | None: ...
    def log(self, text: str) -> None: ...
    def start_server(self, uid: int) -> None: ...
    def stop_server(self, when_idle: bool) -> None: ...
    def ask_server(self, message: dict[str, Any]) -> dict[str, Any]: ...


NEEDED = {
    "get_server_status": "A server PID is required\n",
    "start_server": "A user id (UID) is required to start a new server\n",
}
"""The answers of these commands to a missing argument."""


def privilege_error(uid: int) -> str:
    return (
        f"Insufficient privileges for UID {uid}. Control deamon settings can only be modified by the user who "
        "started it or by the root user.\n"
    )


def answer(daemon: Daemon, line: str, privileged: bool, uid: int) -> str:
    """The daemon's answer to one command line. A privileged `quit` never gets here."""
    name, *arguments = line.split()
    if name == "quit":
        return "Not enough privilege to execute quit command\n"
    command = COMMANDS.get(name)
    if not arguments and name in NEEDED:
        return NEEDED[name]
    if command is None:
        return f'Unknown command "{name}"\n'
    if not privileged and (name in OF_THE_DAEMON or (name in OF_THE_SERVER and uid != 0)):
        return privilege_error(uid) + REFUSED_AFTER.get(name, "")
    try:
        return command(daemon, arguments)
    except (IndexError, ValueError):
        return f'Invalid arguments for command "{name}"\n'


def _server(daemon: Daemon, argument: str) -> str | None:
    """An error message if `argument` is not the PID of the server, else None."""
    known = argument.isdigit() and int(argument) == daemon.server_pid
    return None if known else f"Server {argument} not found\n"


def _on_server(command: Callable[[Daemon, list[str]], str]) -> Callable[[Daemon, list[str]], str]:
    """A command whose first argument is a server; a missing argument counts as 0."""

    def checked(daemon: Daemon, arguments: list[str]) -> str:
        arguments = arguments or ["0"]
        return _server(daemon, arguments[0]) or command(daemon, arguments[1:])

    return checked


def _server_list(daemon: Daemon, _: list[str]) -> str:
    return "" if daemon.server_pid is None else f"{daemon.server_pid}\n"


def _server_status(daemon: Daemon, _: list[str]) -> str:
    return "FAULT\n" if daemon.ask_server({"op": "status"})["faulted"] else "ACTIVE\n"


def _start_server(daemon: Daemon, arguments: list[str]) -> str:
    uid = int(arguments[arguments.index("-uid") + 1])
    daemon.start_server(uid)
    return ""


def _shutdown_server(daemon: Daemon, arguments: list[str]) -> str:
    """Silent. Without -f the server ends with its last client."""
    daemon.stop_server(when_idle=arguments != ["-f"] and bool(_clients(daemon)))
    return ""


def _clients(daemon: Daemon) -> list[dict[str, Any]]:
    if daemon.server_pid is None:
        return []
    clients: list[dict[str, Any]] = daemon.ask_server({"op": "clients"})["clients"]
    return clients


def _client_list(daemon: Daemon, _: list[str]) -> str:
    return "".join(f"{client['pid']}\n" for client in _clients(daemon))


def _device_client_list(daemon: Daemon, arguments: list[str]) -> str:
    if arguments and (missing := _server(daemon, arguments[0])):
        return missing
    if daemon.server_pid is None:
        return ""
    product = daemon.ask_server({"op": "device"})["product"]
    return f"[0] 00:00.0, {product}\n" + "".join(
        f"{client['pid']}.{client['context']}\n" for client in _clients(daemon)
    )


def _device_query(daemon: Daemon, _: list[str]) -> str:
    """Here only the server knows the GPU, so without a server only the titles are printed (assumed)."""
    title = f"{'Device Ordinal':<16}{'PCI IDs':<15}{'UUID':<42}{'Name':<34}Attributes\n"
    if daemon.server_pid is None:
        return f"Default\n{title}"
    device = daemon.ask_server({"op": "device"})
    row = f"{0:<16}{'0000:00.00.00':<15}{device['uuid']:<42}{device['product']:<34}N/A\n"
    return f"Default\n{title}{row}\nServer {daemon.server_pid}\n{title}{row}"


def _ps(daemon: Daemon, _: list[str]) -> str:
    """MPS truncates UUIDs."""
    table = f"{'PID':<10}{'ID':<10}{'SERVER':<15}{'DEVICE':<26}{'NAMESPACE':<15}{'COMMAND':<15}\n"
    uuid = daemon.ask_server({"op": "device"})["uuid"] if daemon.server_pid is not None else ""
    for client in _clients(daemon):
        namespace, command = _describe(client["pid"])
        numbers = f"{client['pid']:<10}{client['context']:<10}{daemon.server_pid:<15}"
        table += f"{numbers}{uuid[:22]:<26}{namespace:<15}{command:<15}\n"
    return table


def _describe(pid: int) -> tuple[str, str]:
    """(PID namespace, command) of a process; empty strings if it cannot be read."""
    try:
        namespace = os.readlink(f"/proc/{pid}/ns/pid").removeprefix("pid:[").removesuffix("]")  # noqa: PTH115
        with open(f"/proc/{pid}/cmdline") as file:  # noqa: PTH123
            return namespace, file.read().split("\0")[0]
    except OSError:
        return "", ""


def _terminate_client(daemon: Daemon, arguments: list[str]) -> str:
    arguments = arguments or ["0"]
    if _server(daemon, arguments[0]):
        return f"Server {arguments[0]} not found\nServer {arguments[0]} not found!\n1\n"
    pid = int(arguments[1])
    listed = daemon.ask_server({"op": "terminate", "pid": pid})["found"]
    if listed:
        return "0\n"
    return "201\n" if pid and os.path.exists(f"/proc/{pid}") else f"Invalid process {pid}!\n1\n"  # noqa: PTH110


def _set_default_threads(daemon: Daemon, arguments: list[str]) -> str:
    if arguments:
        daemon.settings.threads = _new_threads(daemon, daemon.settings.threads, arguments[0])
    return f"{daemon.settings.threads}\n"


def _new_threads(daemon: Daemon, old: float, text: str) -> float:
    value = limits.percentage(text)
    if value is None:
        daemon.log(f"Active thread percentage {text} is not within (0, 100]")
    return old if value is None else value


def _set_server_threads(daemon: Daemon, arguments: list[str]) -> str:
    settings = _server_settings(daemon)
    settings.threads = _new_threads(daemon, settings.threads, arguments[0])
    daemon.ask_server({"op": "set", "threads": settings.threads})
    return f"{settings.threads}\n"


def _server_settings(daemon: Daemon) -> DaemonSettings:
    """The live server's own settings: the defaults at its start, and what was set for it since."""
    return DaemonSettings(**daemon.ask_server({"op": "settings"}))


def _set_default_memory(daemon: Daemon, arguments: list[str]) -> str:
    if len(arguments) > 1:
        daemon.settings.set_memory(arguments[0], arguments[1])
    return ""


def _set_server_memory(daemon: Daemon, arguments: list[str]) -> str:
    settings = _server_settings(daemon)
    settings.set_memory(arguments[0], arguments[1])
    daemon.ask_server({"op": "set", "memory": settings.memory})
    return ""


def _memory_of(settings: DaemonSettings, arguments: list[str]) -> str:
    """A limit is shown only under the name that it was set with: one set by UUID does not show under the index."""
    return limits.memory_text(settings.memory.get(arguments[0] if arguments else "0"))


def _set_default_priority(daemon: Daemon, arguments: list[str]) -> str:
    daemon.settings.priority = int(arguments[0])
    return ""


COMMANDS: dict[str, Callable[[Daemon, list[str]], str]] = {
    "get_server_list": _server_list,
    "get_server_status": _on_server(_server_status),
    "start_server": _start_server,
    "shutdown_server": _on_server(_shutdown_server),
    "get_client_list": _on_server(_client_list),
    "get_device_client_list": _device_client_list,
    "device_query": _device_query,
    "ps": _ps,
    "terminate_client": _terminate_client,
    "get_default_active_thread_percentage": lambda daemon, _: f"{daemon.settings.threads}\n",
    "set_default_active_thread_percentage": _set_default_threads,
    "get_active_thread_percentage": _on_server(lambda daemon, _: f"{_server_settings(daemon).threads}\n"),
    "set_active_thread_percentage": _on_server(_set_server_threads),
    "get_default_device_pinned_mem_limit": lambda daemon, arguments: _memory_of(daemon.settings, arguments),
    "set_default_device_pinned_mem_limit": _set_default_memory,
    "get_device_pinned_mem_limit": _on_server(
        lambda daemon, arguments: _memory_of(_server_settings(daemon), arguments)
    ),
    "set_device_pinned_mem_limit": _on_server(_set_server_memory),
    "get_default_client_priority": lambda daemon, _: f"{daemon.settings.priority}\n",
    "set_default_client_priority": _set_default_priority,
}
