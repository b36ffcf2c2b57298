"""What the agent knows and has decided: its loops keep it current, whoever else runs beside them only reads it.

GpuShares as the agent reads them: one that an operator of another release wrote oddly must not stop the others.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from gpushare.agent.faults.reports import GpuHealth, gpu_health
from gpushare.agent.gpus.devices import Devices
from gpushare.agent.gpus.inventory import Inventory
from gpushare.agent.kubelet.holdings import KubeletView, ShareGpu
from gpushare.agent.kubelet.reader import KubeletReader, PodResourcesSource
from gpushare.agent.reconcile import daemon_files as daemons
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.decision import DecisionInput, GpuDecision
from gpushare.agent.settings import AgentSettings
from gpushare.agent.status.metrics import NodeSnapshot
from gpushare.agent.termination.after_fault import GpuFault, faults_of
from gpushare.agent.termination.max_wait import ExpiredGpu
from gpushare.agent.usage.usage import Reading
from gpushare.agent.usage.violations import Enforcer, UsageMonitor
from gpushare.api.gpunode import Assignment, Finding, GpuNode, ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.kube.client import GPU_NODES, GPU_SHARES, PODS, Kube, Object
from gpushare.kube.reflector import Key, Reflector
from gpushare.mps.wire import DaemonState
from gpushare.nvml.types import Nvml

LOG = logging.getLogger(__name__)


class ShareParser:
    """Parsed once per resource version."""

    def __init__(self) -> None:
        self._parsed: dict[Key, tuple[str, GpuShare | None]] = {}

    def read(self, objects: Mapping[Key, Object]) -> dict[ShareName, GpuShare]:
        """By name; what cannot be read is left out, and told once."""
        self._parsed = {key: self._parse(key, obj) for key, obj in objects.items()}
        return {share.name: share for _, share in self._parsed.values() if share is not None}

    def _parse(self, key: Key, obj: Object) -> tuple[str, GpuShare | None]:
        version = obj["metadata"]["resourceVersion"]
        known = self._parsed.get(key)
        if known is not None and known[0] == version:
            return known
        try:
            return version, GpuShare.model_validate(obj)
        except ValidationError as error:
            LOG.warning("GpuShare %s is passed over: %s", key[1], error)
            return version, None


class AgentState:
    """`picture`: what was decided on last; None before the first decision. `generation`, `assignments`: of the
    GpuNode's spec as it was then.
    """

    def __init__(
        self,
        settings: AgentSettings,
        kube: Kube,
        nvml: Nvml,
        pod_resources: PodResourcesSource,
        enforcer: Enforcer,
        clock: Callable[[], float],
        proc: Path,
        changed: Callable[[], None],
        pods_changed: Callable[[], None],
        claimed: Callable[[], Mapping[ShareGpu, frozenset[str]]],
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
        self.watch = UsageMonitor(clock, enforcer, proc, settings.clear_seconds)
        self.on_disk: dict[Uuid, DaemonFiles] = {}
        self.decisions: dict[Uuid, GpuDecision] = {}
        self.picture: DecisionInput | None = None
        self.assignments: tuple[Assignment, ...] | None = None
        self.generation = 0
        self._root = settings.root
        self._clock = clock
        self._claimed = claimed
        self._parsed = ShareParser()

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

    def holding(self, view: KubeletView | None) -> dict[ShareGpu, frozenset[str]]:
        """The pods that hold a part of a GPU, as namespace/name."""
        return {**(view.pods() if view else {}), **self._claimed()}

    def taken(self) -> list[Uuid]:
        """GPUs that have a daemon of ours."""
        return list(self.on_disk)

    def expired(self) -> list[ExpiredGpu]:
        """GPUs with a daemon of ours whose clients are to be ended."""
        plans = [self.decisions[uuid].plan for uuid in self.on_disk if uuid in self.decisions]
        return [ExpiredGpu(plan.uuid, plan.share) for plan in plans if plan.ends_clients]

    def fault_looks(self) -> list[GpuHealth]:
        """What is known now of each GPU with a daemon of ours, for reports of faults."""
        holders: dict[Uuid, set[str]] = {}
        for (_, uuid), pods in self.holding(self.kubelet.view).items():
            holders.setdefault(uuid, set()).update(pods)
        absent = self.kubelet.view.absent if self.kubelet.view else {}
        return [
            gpu_health(decision.verdict, item.state, self.observed.get(uuid), holders.get(uuid, ()), absent, uuid)
            for uuid, decision in self.decisions.items()
            if (item := self.on_disk.get(uuid)) is not None
        ]

    def supervised(self) -> dict[Uuid, DaemonState]:
        """The word of each supervisor of a GPU that was decided on."""
        found = {uuid: item.state for uuid, item in self.on_disk.items() if uuid in self.decisions}
        return {uuid: state for uuid, state in found.items() if state is not None}

    def faults(self) -> list[GpuFault]:
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
