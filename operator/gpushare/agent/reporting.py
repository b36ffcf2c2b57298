"""Tells the API what the agent knows: the GpuNode's status and, for claims, the ResourceSlice."""

from datetime import UTC, datetime
from importlib.metadata import version

from gpushare.agent.dra.driver import ClaimDelivery
from gpushare.agent.kubelet.holdings import Slots, united
from gpushare.agent.reconcile.decision import DecisionInput, GpuDecision
from gpushare.agent.reconcile.lifecycle import Lifecycle
from gpushare.agent.state import AgentState
from gpushare.agent.status.status import GpuFacts, NodeFacts, build
from gpushare.agent.status.writer import GpuNodeWriter
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.timestamps import format_timestamp


class Reporter:
    """`ready`: the status has been written once with all that is known at the start."""

    def __init__(self, known: AgentState, claims: ClaimDelivery, writer: GpuNodeWriter, lifecycle: Lifecycle) -> None:
        self.ready = False
        self._known = known
        self._claims = claims
        self._writer = writer
        self._lifecycle = lifecycle

    async def report(self) -> None:
        known = self._known
        if known.informed and known.picture is not None:
            await self._claims.publish(known.inventory.driver, by_cdi=known.devices.by_cdi)
        node, picture = known.gpu_node(), known.picture
        if node is None:
            if known.nodes.synced.is_set():
                await self._writer.create()
            return
        if picture is None:
            return
        await self._writer.write(build(self._facts(picture), node.status), node)
        self.ready = known.informed and known.pods.synced.is_set() and picture.kubelet is not None

    def _facts(self, picture: DecisionInput) -> NodeFacts:
        known = self._known
        return NodeFacts(
            # Of the assignments that were decided on, not of those that came since.
            generation=known.generation,
            agent_version=version("gpushare"),
            simulated=known.inventory.simulated,
            modes=known.modes,
            driver=known.inventory.driver,
            views=known.inventory.views,
            original_modes={uuid: item.original_mode for uuid, item in known.on_disk.items()},
            gpus=[self._gpu_facts(decision) for decision in known.decisions.values()],
            held=_held(picture),
            holding=known.holding(picture.kubelet),
            assignments=known.assignments or (),
            pods=list(known.pods.objects.values()),
            findings=known.watch.findings(),
            nvml_error=known.inventory.error,
            kubelet_error=known.kubelet.error,
            now=format_timestamp(datetime.now(UTC)),
        )

    def _gpu_facts(self, decision: GpuDecision) -> GpuFacts:
        uuid = decision.plan.uuid
        item = self._known.on_disk.get(uuid)
        state = item.state if item else None
        return GpuFacts(decision.plan, decision.verdict, state, decision.drained, self._lifecycle.notes.get(uuid, ""))


def _held(picture: DecisionInput) -> dict[tuple[ShareName, Uuid], Slots] | None:
    return None if picture.kubelet is None else united(picture.kubelet.held, picture.promised)
