"""What must be the case: shares, their GPUs and clients, and what each step may do to them. Pure, no cluster in it.

Every share takes one GPU of its node, so a share with a GPU stands for that GPU. What a step may legitimately end is
decided here and nowhere else: a fault, a crash in mid-kernel, the death of a server or of a daemon end the clients of
that GPU; a departure, a resize, the death or restart of any other part end nobody.
"""

from dataclasses import dataclass, field
from enum import StrEnum

GPUS = 2
NAMES = ("red", "green", "blue")
MOST_CLIENTS = 10


class Kind(StrEnum):
    """What a client does with its GPU."""

    WORKER = "worker"  # checks its own results, and catches SIGTERM
    VICTIM = "victim"  # one long kernel after another, and does not
    HOG = "hog"  # asks for more memory than granted
    FAULTY = "faulty"  # illegal address
    CRASHING = "crashing"  # ends in mid-kernel without leaving the GPU


STAYING = (Kind.WORKER, Kind.VICTIM)
HARMFUL = (Kind.FAULTY, Kind.CRASHING)


@dataclass(slots=True)
class Share:
    """`has_gpu`: it holds one, or is the next in line for one that is free. `unsure`: its server may refuse or fail the
    clients that start before the share was seen Ready again; `poisoned`: the next client may, however long after."""

    name: str
    per_gpu: int
    threads: int
    has_gpu: bool
    deleting: bool = False
    unsure: bool = False
    poisoned: bool = False
    bound: int = 0
    """Containers allowed on its GPU: perGpu, or those that were there when it shrank, until they have ended."""
    claimed: bool = False
    """Delivered by ResourceClaim: the kubelet offers no slot of it."""


@dataclass(slots=True)
class Client:
    name: str
    share: str
    kind: Kind
    checks: int = 0
    """The number of results that it had checked when last seen."""


@dataclass(slots=True)
class World:
    shares: dict[str, Share] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    """Those that must be alive and unharmed now."""
    doomed: set[str] = field(default_factory=set)
    """Those that may legitimately end, or have: of them nothing is asked but that they do not stay for ever."""
    agent_away: bool = False
    """Killed, and not seen ready since: departures are unguarded, slots are not offered."""
    numbered: int = 0

    def of(self, share: str) -> list[Client]:
        return [client for client in self.clients.values() if client.share == share]

    def free_slots(self, share: Share) -> int:
        return max(0, share.per_gpu - len(self.of(share.name)))

    def usable(self) -> list[Share]:
        """Shares on which a client can start."""
        return [share for share in self.shares.values() if share.has_gpu and not share.deleting]

    # -- what steps do

    def create(self, name: str, per_gpu: int, threads: int) -> None:
        taken = sum(share.has_gpu for share in self.shares.values())
        self.shares[name] = Share(name, per_gpu, threads, has_gpu=taken < GPUS, bound=per_gpu)

    def resize(self, name: str, per_gpu: int, threads: int) -> None:
        share = self.shares[name]
        share.per_gpu, share.threads = per_gpu, threads
        share.bound = max(share.bound, per_gpu)

    def delete(self, name: str) -> None:
        self.shares[name].deleting = True

    def new_name(self, kind: Kind) -> str:
        self.numbered += 1
        return f"{kind}-{self.numbered}"

    def started(self, client: Client) -> None:
        self.clients[client.name] = client
        self.shares[client.share].poisoned = False

    def ended(self, name: str) -> None:
        self.clients.pop(name)

    def gpu_failed(self, name: str) -> None:
        """A fault, a crash or the end of the server: everybody on that GPU may end."""
        share = self.shares[name]
        share.unsure = True
        for client in self.of(name):
            self.doomed.add(client.name)
            del self.clients[client.name]

    def crashed(self, name: str) -> None:
        if self.of(name):
            self.gpu_failed(name)
        else:
            self.shares[name].poisoned = True

    def settled(self) -> None:
        """Everything has converged: shares without clients that were being deleted are gone, GPUs are handed on."""
        for share in [other for other in self.shares.values() if other.deleting and not self.of(other.name)]:
            del self.shares[share.name]
        for share in self.shares.values():
            share.unsure = False
            share.bound = max(share.per_gpu, len(self.of(share.name)))
            share.has_gpu = share.has_gpu or sum(other.has_gpu for other in self.shares.values()) < GPUS
        self.doomed.clear()
        self.agent_away = False

    def capacity(self, share: Share) -> int:
        """Slots that the node offers once all is settled: held ones stay offered, and none is free while it leaves."""
        held = len(self.of(share.name))
        if not share.has_gpu or share.claimed:
            return 0
        return held if share.deleting else max(held, share.per_gpu)
