"""MPS namespaces, of protocol v3: one for each container that attaches, with the container's grant as its limits.

Guarantees: no namespace gives more than the share's own limits. The broker gets the name of a namespace whose limits
were read back, and a link to its socket. A namespace goes once its container holds no part of the GPU any more and the
daemon lets it go, when the next container comes.
"""

import os
from contextlib import suppress

from gpushare.mps.control import RefusedError, shown_mib
from gpushare.mps.control_v3 import DEFAULT_NAMESPACE, SERVER, ControlProgramV3, MpsNamespace
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import GpuDir, is_namespace_name, namespace_name
from gpushare.mps.wire import DaemonLimits, GpuGrants, ServedClients, TurnRequest

_NEW = ".namespace.new"


def covers(limits: DaemonLimits, shown: MpsNamespace) -> bool:
    """Tells whether a namespace gives no more than these limits."""
    return shown.threads <= limits.threads and shown.memory_mib is not None and shown.memory_mib <= limits.memory_mib


def agrees(limits: DaemonLimits, shown: MpsNamespace) -> bool:
    """Tells whether a namespace has these limits. The documentation does not say how one is rounded; v2 shows whole
    GiB from 1 GiB on.
    """
    return shown.threads == limits.threads and shown.memory_mib in (limits.memory_mib, shown_mib(limits.memory_mib))


class Namespaces:
    """The namespaces of one GPU's daemon. Call `prepare` under the lock of the limits alone."""

    def __init__(self, gpu: GpuDir, control: ControlProgramV3) -> None:
        self._gpu = gpu
        self._control = control
        self._server = 0
        self._prepared: dict[str, DaemonLimits] = {}
        self._published: list[int] | None = None

    def prepare(self, server: int, ceiling: DaemonLimits, request: TurnRequest) -> str:
        """The namespace's name, which is the request's. ControlError: it has not got these limits."""
        name = request.namespace
        if not is_namespace_name(name):
            raise RefusedError("namespace", f"{name!r} names no container's namespace")
        if server != self._server:
            self._server, self._prepared = server, {}
        limits = DaemonLimits(
            threads=min(request.threads, ceiling.threads),
            memory_mib=min(request.memory_mib, ceiling.memory_mib),
        )
        if self._prepared.get(name) != limits:
            self._prepared.pop(name, None)
            if self._make(name, limits):
                self._prepared[name] = limits
        return name

    def _make(self, name: str, limits: DaemonLimits) -> bool:
        """All of it may have been done before, by a supervisor that has ended since. False: the namespace has less than
        these limits, because the daemon changes none that has clients.
        """
        known = self._control.namespaces()
        self._delete_unused(set(known) - {name, DEFAULT_NAMESPACE})
        if name not in known:
            self._control.create_namespace(name)
        if name not in known or not agrees(limits, known[name]):
            with suppress(RefusedError):  # what it shows then decides
                self._control.set_namespace(name, limits.threads, limits.memory_mib)
        shown = self._control.namespaces().get(name)
        if shown is None or not (agrees(limits, shown) or covers(limits, shown)):
            raise RefusedError(f"namespace set {name}", f"it shows {shown} where {limits} are wanted")
        self._link(name, shown)
        return agrees(limits, shown)

    def _delete_unused(self, names: set[str]) -> None:
        """Deletes namespaces of containers that the agent no longer names. One with clients is refused, and stays."""
        grants = read_model(self._gpu.grants, GpuGrants).value
        if grants is None:
            return
        held = {
            namespace_name(pod.uid, container.name)
            for pod in grants.pods
            for container in pod.containers
            if container.grant is not None
        }
        for name in names - held:
            try:
                self._control.delete_namespace(name)
            except RefusedError:
                continue
            self._prepared.pop(name, None)
            (self._gpu.client / name).unlink(missing_ok=True)

    def _link(self, name: str, shown: MpsNamespace) -> None:
        """Links the socket as the daemon's own: a hard link, since the broker may not enter pipe/."""
        target = self._gpu.pipe / SERVER / name / "control"
        if shown.pipe != target.parent:
            raise RefusedError("namespace list", f"the directory of namespace {name} is {shown.pipe}")
        new = self._gpu.client / _NEW
        try:
            new.unlink(missing_ok=True)
            os.link(target, new, follow_symlinks=False)
            new.replace(self._gpu.client / name)
        except OSError as error:
            raise RefusedError(f"namespace create {name}", f"its socket cannot be linked: {error}") from error

    def publish_clients(self, pids: list[int]) -> None:
        """Writes the clients for the broker, where they have changed. OSError."""
        if pids != self._published:
            self._gpu.client.mkdir(mode=0o755, exist_ok=True)
            write_model(self._gpu.clients, ServedClients(pids=sorted(pids)[:256]), mode=0o644)
            self._published = list(pids)

    def clear(self) -> None:
        """The daemon has ended."""
        self._prepared, self._published = {}, None
        with suppress(FileNotFoundError):
            for entry in self._gpu.client.iterdir():
                if is_namespace_name(entry.name):
                    entry.unlink(missing_ok=True)
            self._gpu.clients.unlink(missing_ok=True)
