"""What the agent has read of its node, and what follows of who holds which part of a GPU.

Each part is written by the loops that its line names, and by nothing else. Nothing here is a decision.
"""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from gpushare.agent.attach.grants import PartHolders
from gpushare.agent.dra.prepared import PreparedClaims
from gpushare.agent.dra.users import uses
from gpushare.agent.gpus.devices import Devices
from gpushare.agent.gpus.inventory import Inventory
from gpushare.agent.node_cache import NodeCache
from gpushare.agent.observe.usage import ListedClients
from gpushare.agent.observe.usage_reader import TakenGpu
from gpushare.agent.podresources.holdings import ContainerName, KubeletView, ShareGpu
from gpushare.agent.podresources.reader import KubeletReader
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.directories import GpuDirectories
from gpushare.agent.reconcile.places import gpu_places
from gpushare.api.gpunode import GpuPlaces, Uuid
from gpushare.grant.model import Grant
from gpushare.kube.pods import pods_by_cgroup_uid


@dataclass(frozen=True, slots=True)
class Wakeups:
    """Each starts the next turn of the loop of its name, by being set."""

    tick: asyncio.Event = field(default_factory=asyncio.Event)
    report: asyncio.Event = field(default_factory=asyncio.Event)
    gpus: asyncio.Event = field(default_factory=asyncio.Event)
    kubelet: asyncio.Event = field(default_factory=asyncio.Event)
    observe: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Readings:
    cache: NodeCache
    """What the API server shows. Loops: nodes, shares, pods."""
    inventory: Inventory
    """What NVML shows. Loop: poll_gpus; a step that sets a GPU's mode writes what NVML says of it then."""
    devices: Devices
    """The driver's files. Loop: scan."""
    kubelet: KubeletReader
    """The kubelet's PodResources. Loop: poll_kubelet."""
    directories: GpuDirectories
    """The GPUs' directories on this node. Loop: tick."""
    claims: PreparedClaims
    """The prepared claims. The DRA plugin's calls, and its loop: prepared_claims."""

    def parts(self) -> tuple[dict[ContainerName, ShareGpu], dict[ContainerName, Grant]]:
        """The GPUs of the containers' slots and claims, and what the claims grant."""
        slots = self.kubelet.view.share_gpus() if self.kubelet.view else {}
        claimed = self.claims.containers(self.cache.pods.objects.values())
        places = {**slots, **{container: use.share_gpu for container, use in claimed.items()}}
        return places, {container: use.grant for container, use in claimed.items()}

    def claimed_grants(self) -> dict[ContainerName, Grant]:
        """What the prepared claims of this node's containers grant."""
        return self.parts()[1]

    def gpu_places(self) -> list[GpuPlaces]:
        """The places of the GPUs taken whose share has a queue."""
        shared = self.directories.shared.values()
        if all(item.broker is None or item.broker.places is None for item in shared):
            return []
        pods = pods_by_cgroup_uid(self.cache.pods.objects.values())
        made = (gpu_places(item.broker, item.wanted.share, pods) for item in shared)
        return [places for places in made if places is not None]

    def whole_places(self) -> dict[ContainerName, list[ShareGpu]]:
        """The GPUs that containers have whole."""
        return self.kubelet.view.whole_gpus() if self.kubelet.view else {}

    def holding(self, view: KubeletView | None) -> dict[ShareGpu, frozenset[str]]:
        """The pods that hold a part of a GPU, as namespace/name."""
        return {**(view.pods() if view else {}), **self.claims.pods(self.cache.pods.objects.values())}

    def part_holders(self) -> PartHolders | None:
        """Who may attach to the GPUs; None until pods, shares, claims and the kubelet's list are known."""
        if self.kubelet.view is None or self.claims.unread or not self.cache.complete:
            return None
        pods = pods_by_cgroup_uid(self.cache.pods.objects.values())
        return PartHolders(pods, *self.parts(), self.cache.shares, self.devices.by_cdi)

    def claims_used(self) -> set[tuple[str, str]] | None:
        """(namespace, name) of each claim that a pod of this node uses; None: that or the kubelet is not known now."""
        if self.kubelet.view is None or self.kubelet.error or not self.cache.pods.synced.is_set():
            return None
        pods = self.cache.pods.objects.values()
        return {(pod["metadata"]["namespace"], use.claim) for pod in pods for use in uses(pod)}

    def taken(self) -> dict[Uuid, TakenGpu]:
        """The GPUs taken, without those given whole while the kubelet was not read: who may use them is not known."""
        whole = dict(self._taken_whole()) if self.kubelet.view is not None else {}
        shared = self.directories.shared.items()
        return whole | {
            uuid: TakenGpu(item.wanted.share, item.server_pid, None, *_served(item)) for uuid, item in shared
        }

    def served(self, uuid: Uuid) -> Collection[int]:
        """The PIDs that the GPU's MPS server lists, as far as that is known."""
        item = self.directories.shared.get(uuid)
        clients = item.state.clients if item is not None and item.state is not None else None
        return [client.pid for client in clients or ()]

    @property
    def lends(self) -> bool:
        """Whether a share that has a GPU here lets its clients borrow memory."""
        shares = (self.cache.shares.get(item.wanted.share) for item in self.directories.shared.values())
        return any(share is not None and share.limits_memory is not None for share in shares)

    def _taken_whole(self) -> Iterator[tuple[Uuid, TakenGpu]]:
        holders: dict[Uuid, set[ContainerName]] = {}
        for container, held in self.whole_places().items():
            for _, uuid in held:
                holders.setdefault(uuid, set()).add(container)
        for uuid, gpu in self.directories.whole.items():
            yield uuid, TakenGpu(gpu.share, None, frozenset(holders.get(uuid, ())))


def _served(item: DaemonFiles) -> tuple[ListedClients | None, float]:
    """Whom the GPU's MPS server lists, and when the supervisor read that. None: not known, as while it is in FAULT."""
    state, broker = item.state, item.broker
    if state is None or state.clients is None or not state.ready:
        return None, 0.0
    contexts = {client.pid: client.contexts for client in state.clients}
    if broker is None:
        return ListedClients(contexts), state.heartbeat
    has_queue = broker.places is not None  # without one nobody needs a place
    unattached, without_pages, without_place = (
        frozenset((client.pid, client.started) for client in clients)
        for clients in (broker.unattached, broker.without_pages, broker.without_place if has_queue else [])
    )
    return ListedClients(contexts, unattached, without_pages, without_place), state.heartbeat
