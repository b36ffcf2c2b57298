"""What the agent knows and has decided: its loops keep it current, whoever else runs beside them only reads it."""

from collections.abc import Callable, Mapping
from pathlib import Path

from gpushare.api.gpunode import Assignment, Finding, GpuNode, ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.kube.client import GPU_NODES, GPU_SHARES, PODS, Kube, Object
from gpushare.kube.reflector import Reflector
from gpushare.mps.wire import DaemonState
from gpushare.node import daemons
from gpushare.node.daemons import OnDisk
from gpushare.node.decision import GpuDecision, Picture
from gpushare.node.devices import Devices
from gpushare.node.expiry import Expired
from gpushare.node.fault_reports import Look, look_at
from gpushare.node.holdings import KubeletView, Place
from gpushare.node.inventory import Inventory
from gpushare.node.kubelet import KubeletReader, Source
from gpushare.node.lingerers import Fault, faults_of
from gpushare.node.metrics import NodeSnapshot
from gpushare.node.settings import AgentSettings
from gpushare.node.shares import Shares
from gpushare.node.usage import Reading
from gpushare.node.watch import Enforcer, Watch
from gpushare.nvml.types import Nvml


class Knowledge:
    """`picture`: what was decided on last; None before the first decision. `generation`, `assignments`: of the
    GpuNode's spec as it was then.
    """

    def __init__(
        self,
        settings: AgentSettings,
        kube: Kube,
        nvml: Nvml,
        pod_resources: Source,
        enforcer: Enforcer,
        clock: Callable[[], float],
        proc: Path,
        changed: Callable[[], None],
        pods_changed: Callable[[], None],
        claimed: Callable[[], Mapping[Place, frozenset[str]]],
    ) -> None:
        """`changed`: called at news of shares and of this node's assignments. `claimed`: the pods, as namespace/name,
        that hold a part of each GPU by claims.
        """
        node = settings.node
        self.node = node
        self.modes = settings.compute_modes
        self.devices = Devices(settings)
        self.inventory = Inventory(nvml, clock)
        self.nodes = Reflector(kube, GPU_NODES, changed, fieldSelector=f"metadata.name={node}")
        self.shares = Reflector(kube, GPU_SHARES, changed)
        self.pods = Reflector(kube, PODS, pods_changed, fieldSelector=f"spec.nodeName={node}")
        self.kubelet = KubeletReader(pod_resources, clock, self._known_pods)
        self.watch = Watch(clock, enforcer, proc)
        self.on_disk: dict[Uuid, OnDisk] = {}
        self.decisions: dict[Uuid, GpuDecision] = {}
        self.picture: Picture | None = None
        self.assignments: tuple[Assignment, ...] | None = None
        self.generation = 0
        self._root = settings.root
        self._clock = clock
        self._claimed = claimed
        self._parsed = Shares()

    @property
    def informed(self) -> bool:
        """Whether shares and assignments were read from the API."""
        return self.shares.synced.is_set() and self.nodes.synced.is_set()

    @property
    def observed(self) -> dict[Uuid, Reading]:
        """Who uses each shared GPU, by the latest reading; a GPU of which nothing is known now is not there."""
        return self.watch.readings

    def read_spec(self) -> None:
        """Takes over what the GpuNode's spec and the disk say now."""
        node = self.gpu_node()
        if node is not None:
            self.generation = node.metadata.generation
            if node.spec.assignments is not None:
                self.assignments = tuple(node.spec.assignments)
        self.on_disk = daemons.read_all(self._root)

    def models(self) -> Mapping[ShareName, GpuShare]:
        """The shares of now."""
        return self._parsed.read(self.shares.objects)

    def gpu_node(self) -> GpuNode | None:
        found = next(iter(self.nodes.objects.values()), None)
        return None if found is None else GpuNode.model_validate(found)

    def findings_told(self) -> list[Finding]:
        """What the API holds of them."""
        node = self.gpu_node()
        return node.status.findings if node is not None else []

    def pods_by_uid(self) -> dict[str, Object]:
        """This node's pods, as far as they are known."""
        return {pod["metadata"]["uid"]: pod for pod in self.pods.objects.values()}

    def holding(self, view: KubeletView | None) -> dict[Place, frozenset[str]]:
        """The pods that hold a part of a GPU, as namespace/name."""
        return {**(view.pods() if view else {}), **self._claimed()}

    def taken(self) -> list[Uuid]:
        """GPUs that have a daemon of ours."""
        return list(self.on_disk)

    def expired(self) -> list[Expired]:
        """GPUs with a daemon of ours whose clients are to be ended."""
        plans = [self.decisions[uuid].plan for uuid in self.on_disk if uuid in self.decisions]
        return [Expired(plan.uuid, plan.share) for plan in plans if plan.ends_clients]

    def fault_looks(self) -> list[Look]:
        """What is known now of each GPU with a daemon of ours, for reports of faults."""
        holders: dict[Uuid, set[str]] = {}
        for (_, uuid), pods in self.holding(self.kubelet.view).items():
            holders.setdefault(uuid, set()).update(pods)
        absent = self.kubelet.view.absent if self.kubelet.view else {}
        return [
            look_at(decision.verdict, item.state, self.observed.get(uuid), holders.get(uuid, ()), absent, uuid)
            for uuid, decision in self.decisions.items()
            if (item := self.on_disk.get(uuid)) is not None
        ]

    def supervised(self) -> dict[Uuid, DaemonState]:
        """The word of each supervisor of a GPU that was decided on."""
        found = {uuid: item.state for uuid, item in self.on_disk.items() if uuid in self.decisions}
        return {uuid: state for uuid, state in found.items() if state is not None}

    def faults(self) -> list[Fault]:
        """GPUs whose server waits for clients that a fatal fault has hit, of shares that are known."""
        states = {uuid: item.state for uuid, item in self.on_disk.items() if item.state is not None}
        return faults_of(states, self.models(), self._clock())

    def snapshot(self) -> NodeSnapshot:
        """What is known now, for metrics: every value in it is replaced by later ones, never changed."""
        view, driver = self.kubelet.view, self.inventory.driver
        return NodeSnapshot(
            now=self._clock(),
            simulated=self.inventory.simulated,
            views=self.inventory.views,
            client_ceiling=driver.client_ceiling if driver else None,
            decisions=self.decisions,
            states={uuid: item.state for uuid, item in self.on_disk.items()},
            observed=self.observed,
            findings=self.watch.findings() or (),
            nvml_error=self.inventory.error,
            kubelet_error=self.kubelet.error,
            kubelet_read_at=view.started if view else None,
        )

    def _known_pods(self) -> list[Object] | None:
        return list(self.pods.objects.values()) if self.pods.synced.is_set() else None
