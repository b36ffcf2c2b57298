"""Whether a container's process may attach, by who has attached and by whom the MPS server lists; and who is listed
without having attached.

Guarantees: the list is the server's own, read while no other process attaches. A process counts that has attached and
lives, that has attached and whose socket somebody holds, or that the server lists. So a process that attaches for
others and ends adds nothing to what its container may have. Contexts count as long as they live.
Does not guarantee that the PIDs of the list are true: a process in a PID namespace of its own may name another one
(the agent holds NVML's list against it). Under protocol v3 the list is seconds old, and shows a process once.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path

from gpushare.messages.wording import count_of
from gpushare.mps.attach_protocol import ProtocolError
from gpushare.mps.broker.admission import AttachAdmitted, AttachDenied
from gpushare.mps.broker.clients import AttachedClients
from gpushare.mps.broker.daemon import BrokeredDaemon
from gpushare.mps.broker.turns import NoTurnError
from gpushare.mps.identity import Container, Identity
from gpushare.mps.packets import Peer
from gpushare.mps.wire import MAX_UNATTACHED, ClientGrant, RefusedAttach, UnattachedClient
from gpushare.process import procfs
from gpushare.process.bounded_read import lines
from gpushare.process.procfs import Owner

UNIX_SOCKETS = Path("/proc/net/unix")
RESTORE_SECONDS = 10.0
"""A broker takes whom the server lists in its first seconds for clients of the broker before it, if there was one."""

ListedContexts = Mapping[Identity, int]
"""How many contexts each process has by the server's list."""


class AttachDeniedError(Exception):
    def __init__(self, refused: AttachDenied) -> None:
        super().__init__(refused.message)
        self.refused = refused


def refusal(
    grant: ClientGrant, peer: Identity, attached: Iterable[Identity], listed: ListedContexts
) -> tuple[RefusedAttach, str] | None:
    """Pure. Why the process may not attach. `attached`, `listed`: of its container."""
    others = (set(attached) | listed.keys()) - {peer}
    if len(others) >= grant.processes:
        return RefusedAttach.TOO_MANY_PROCESSES, f"{len(others)} of {count_of(grant.processes, 'process')} attached"
    contexts = sum(listed.values())
    if grant.contexts and contexts >= grant.contexts:
        return (
            RefusedAttach.TOO_MANY_CONTEXTS,
            f"its processes have {contexts} of {count_of(grant.contexts, 'CUDA context')}",
        )
    return None


class ClientList:
    """The clients of one GPU. `container_of`: the container of a process by its PID; None: it holds no part of the
    GPU. `read_owner`: its pod and container.
    """

    def __init__(
        self,
        daemon: BrokeredDaemon,
        clients: AttachedClients,
        container_of: Callable[[int], Container | None],
        read_owner: Callable[[int], Owner | None],
    ) -> None:
        self._daemon = daemon
        self._clients = clients
        self._container_of = container_of
        self._read_owner = read_owner
        self._suspects: frozenset[Identity] = frozenset()
        self.listed: Mapping[Identity, Container] = {}
        """Whom the server listed at the latest look, and their containers; of a process of none that is known, its pod
        or itself counts as one.
        """
        self.ended: Mapping[Identity, Container] = {}
        """Those of an earlier look that have ended since, and that the server lists still."""

    def check_attached(self, peer: Identity, container: Container, admitted: AttachAdmitted) -> None:
        """AttachDeniedError: too many processes of its container have attached. NoTurnError: one of them held up all
        others a moment ago.
        """
        penalty = self._clients.penalty(container)
        if penalty:
            raise NoTurnError(
                f"a process of this container stalled in the midst of an attach: none may attach for {penalty:.0f} s"
            )
        self._check(peer, container, admitted, {})

    async def check_listed(self, peer: Identity, container: Container, admitted: AttachAdmitted) -> None:
        """AttachDeniedError: with those whom the server lists its container has too many processes or contexts.
        NoTurnError: the server's list is not known.

        Also for a process' first attach, in `cuInit`, which takes no context: another container may have lent this one
        connections, and whom it let in is known by the list alone.
        """
        try:
            contexts = await self._daemon.contexts()
        except (OSError, ProtocolError) as error:
            raise NoTurnError(f"the MPS daemon does not name its clients: {error}") from error
        perhaps = {pid: count for pid, count in contexts.items() if self._may_belong_to(pid, container)}
        own = {process: count for process, count in identified(perhaps) if self._belongs_to(process) == container}
        self._check(peer, container, admitted, own)

    def _belongs_to(self, process: Identity) -> Container | None:
        """The container of a process that the server lists: as it attached, else by its cgroup."""
        return self._clients.container_of(process) or self._container_of(process[0])

    def _may_belong_to(self, pid: int, container: Container) -> bool:
        """The same, by the PID alone: when each process that is listed started would take long to read."""
        known = self._clients.containers_of(pid)
        return container in known if known else self._container_of(pid) == container

    def _check(self, peer: Identity, container: Container, admitted: AttachAdmitted, listed: ListedContexts) -> None:
        why = refusal(admitted.grant, peer, self._clients.attached(container), listed)
        if why is not None:
            reason, text = why
            raise AttachDeniedError(AttachDenied(reason, text, admitted.owner, admitted.container))

    async def unattached(self) -> list[UnattachedClient]:
        """Whom the server lists in two calls, one after the other, and who never attached. OSError, ProtocolError,
        TimeoutError.
        """
        self._note(await self._daemon.contexts())
        never = frozenset(process for process in self.listed if not self._clients.has_attached(process))
        before, self._suspects = self._suspects, never
        return self.named(sorted(never & before))

    async def restore(self) -> None:
        """Looks, and takes whom the server lists for clients that have attached. OSError, ProtocolError,
        TimeoutError.
        """
        contexts = await self._daemon.contexts()
        running = ((self._container_of(pid), pid) for pid in contexts)
        self._clients.restore((container, pid) for container, pid in running if container is not None)
        self._note(contexts)

    def _note(self, contexts: Mapping[int, int]) -> None:
        known, running = {**self.listed, **self.ended}, identified(contexts)
        self.listed = {process: self._counts_as(process) for process, _ in running}
        ended = contexts.keys() - {pid for (pid, _), _ in running}
        self.ended = {process: container for process, container in known.items() if process[0] in ended}

    def _counts_as(self, process: Identity) -> Container:
        container = self._belongs_to(process)
        if container is not None:
            return container
        owner = self._read_owner(process[0])
        return ("", str(process[0])) if owner is None else (owner.pod_uid, owner.container_id)

    def named(self, processes: Iterable[Identity]) -> list[UnattachedClient]:
        """As many of them as the agent is told."""
        return [self._named(process) for process in islice(processes, MAX_UNATTACHED)]

    def _named(self, process: Identity) -> UnattachedClient:
        owner = self._read_owner(process[0])
        uid, container_id = ("", "") if owner is None else (owner.pod_uid, owner.container_id)
        return UnattachedClient(pid=process[0], started=process[1], pod_uid=uid, container_id=container_id)


def identified(contexts: Mapping[int, int]) -> list[tuple[Identity, int]]:
    """The processes of these PIDs that run. OSError: of one of them that is not known."""
    started = ((pid, procfs.read_start_of_running(pid), count) for pid, count in contexts.items())
    return [((pid, ticks), count) for pid, ticks, count in started if ticks is not None]


def open_sockets(inodes: Iterable[int], listing: Path = UNIX_SOCKETS) -> frozenset[int]:
    """Those of these unix sockets of our network namespace, which is the MPS daemon's too, that somebody holds. All of
    them where that cannot be read.
    """
    wanted = {str(inode).encode(): inode for inode in inodes}
    try:
        # Num RefCount Protocol Flags Type St Inode Path
        return frozenset(
            wanted[words[6]] for line in lines(listing) if (words := line.split())[6:7] and words[6] in wanted
        )
    except OSError:
        return frozenset(wanted.values())


def identity_of(peer: Peer, admitted: AttachAdmitted) -> Identity:
    """AttachDeniedError: which process it is was not known when it was accepted."""
    if peer.started is None:
        text = "the process that connected has ended, or cannot be told from another one"
        raise AttachDeniedError(AttachDenied(RefusedAttach.PROTOCOL, text, admitted.owner, admitted.container))
    return peer.pid, peer.started
