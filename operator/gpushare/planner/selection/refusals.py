"""Why a share cannot take a GPU: an ordered chain of small rules, of which the first that applies is reported.

Each rule answers with a sentence that names what holds the GPU and what to do, or with None. A new rule is a new
function in one of the lists.

GIVE_UP_RULES also make a share give up a GPU that it holds, once idle: those that follow from the share's own spec, and
a driver that has to be let go of. All others never take a GPU away from the share that holds it.

A large fleet has many GPUs and few kinds of them: what a rule may look at decides how often it is asked. The rules in
FACTS see a node and its GPU alone (FoundGpu), so they are asked once for each GPU. GIVE_UP_RULES see of the GPU no more
than its GpuProfile has, so they are asked once for each share and profile (`gpushare.planner.selection.fleet_index`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpushare.api import names
from gpushare.api.compute_mode import ComputeMode, ComputeModePolicy
from gpushare.api.conditions import GpuReason
from gpushare.api.gpunode import Gpu
from gpushare.api.gpushare import CONTEXT_RESERVE_MIB, GpuShare
from gpushare.api.quantity import format_mib
from gpushare.messages.wording import count_of
from gpushare.planner import driver_upgrade
from gpushare.planner.model import NodeView

LOWEST_COMPUTE_CAPABILITY = (7, 0)
"""Volta: from there on MPS clients have address spaces and limits of their own (NVIDIA's MPS documentation)."""


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A GPU where it is. `nvidia_dra`: NVIDIA's DRA driver offers the GPUs of this node."""

    node: NodeView
    gpu: Gpu
    nvidia_dra: bool

    def __str__(self) -> str:
        return f"GPU {self.gpu.uuid} of node {self.node.name}"


@dataclass(frozen=True, slots=True)
class Candidate(FoundGpu):
    """A GPU and a share that may take it.

    `holder`: the share that holds it, or got it earlier in this plan. `taken`: GPUs that the share has on this node.
    `leaves`: the holder gives it back.
    """

    share: GpuShare
    holder: str | None = None
    taken: int = 0
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: GpuReason
    message: str


Rule = Callable[[Candidate], str | None]
Fact = Callable[[FoundGpu], str | None]


def node_not_ready(found_gpu: FoundGpu) -> str | None:
    if found_gpu.node.ready:
        return None
    return f"node {found_gpu.node.name} is not Ready"


def agent_silent(found_gpu: FoundGpu) -> str | None:
    if not found_gpu.node.silence:
        return None
    return f"node {found_gpu.node.name}: {found_gpu.node.silence}"


def product_mismatch(candidate: Candidate) -> str | None:
    products = candidate.share.spec.gpus.products
    if not products or candidate.gpu.product in products:
        return None
    return f'{candidate} is a "{candidate.gpu.product}", which spec.gpus.products does not name'


def held_by_nvidia_plugin(found_gpu: FoundGpu) -> str | None:
    offered = sorted(name for name in found_gpu.node.allocatable if name.startswith(names.NVIDIA_RESOURCES))
    if offered:
        own = found_gpu.node.own_resources
        offered = [name for name in offered if name not in own]
    if not offered:
        return None
    return (
        f"node {found_gpu.node.name} offers {offered[0]}: take it from NVIDIA's device plugin, "
        "with the GPU Operator by the node label nvidia.com/gpu.deploy.device-plugin=false"
    )


def held_by_nvidia_dra(found_gpu: FoundGpu) -> str | None:
    if not found_gpu.nvidia_dra:
        return None
    name = found_gpu.node.name
    return (
        f"node {name} has a ResourceSlice of gpu.nvidia.com: keep NVIDIA's DRA driver off this node first, "
        "with the GPU Operator by the node label nvidia.com/gpu.deploy.dra-driver=false"
    )


def held_by_pods(found_gpu: FoundGpu) -> str | None:
    gpu_node = found_gpu.node.gpu_node
    holders = gpu_node.status.foreign_holders if gpu_node else []
    if not holders:
        return None
    pods = len({(holder.namespace, holder.pod) for holder in holders})
    # Other tenants may read it in the status of a share: so it does not name the pods.
    return (
        f"node {found_gpu.node.name}: {count_of(pods, 'pod')} {'holds' if pods == 1 else 'hold'} "
        f"{min(holder.resource for holder in holders)}: the GPUs are free once "
        f"{'it has' if pods == 1 else 'they have'} ended (GpuNode.status.foreignHolders)"
    )


def driver_upgrading(found_gpu: FoundGpu) -> str | None:
    label = driver_upgrade.upgrade(found_gpu.node.labels)
    return None if label is None else f"the driver of node {found_gpu.node.name} is being upgraded ({label})"


def driver_leaving(candidate: Candidate) -> str | None:
    return driver_upgrading(candidate) if driver_upgrade.leaving(candidate.node.labels) else None


def mig_enabled(found_gpu: FoundGpu) -> str | None:
    if not found_gpu.gpu.mig_enabled:
        return None
    return f"{found_gpu} is in MIG mode, which is not supported: switch it off with `nvidia-smi -mig 0`"


def compute_capability_too_low(found_gpu: FoundGpu) -> str | None:
    capability = found_gpu.gpu.compute_capability
    major, _, minor = capability.partition(".")
    if not (major.isdigit() and minor.isdigit()) or (int(major), int(minor)) >= LOWEST_COMPUTE_CAPABILITY:
        return None
    return f"{found_gpu} has compute capability {capability}; MPS limits need 7.0 or higher"


def foreign_compute_mode(found_gpu: FoundGpu) -> str | None:
    gpu, gpu_node = found_gpu.gpu, found_gpu.node.gpu_node
    if gpu.compute_mode is ComputeMode.DEFAULT or gpu.original_compute_mode is not None:
        return None
    left = gpu_node is not None and gpu_node.status.compute_mode_policy is ComputeModePolicy.LEAVE
    if left and gpu.compute_mode is not ComputeMode.PROHIBITED:
        return None
    return f"{found_gpu} is in compute mode {gpu.compute_mode}, set by somebody else: `nvidia-smi -c DEFAULT` frees it"


def in_use(found_gpu: FoundGpu) -> str | None:
    processes = found_gpu.gpu.foreign_processes
    if not processes:
        return None
    first = min(processes, key=lambda process: process.pid)
    more = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
    named = f" ({first.command})" if first.command else ""
    return f"{found_gpu} is used by process {first.pid}{named}{more}, outside of gpushare"


def gpu_lost(found_gpu: FoundGpu) -> str | None:
    if not found_gpu.gpu.lost:
        return None
    return f"{found_gpu} cannot be reached any more: see the node's kernel log for its Xid; it may need a reset"


def client_ceiling(candidate: Candidate) -> str | None:
    if candidate.share.whole:
        return None
    gpu_node = candidate.node.gpu_node
    ceiling = gpu_node.status.client_ceiling if gpu_node else 0
    clients, contexts = candidate.share.clients, candidate.share.contexts_per_gpu
    if not ceiling or contexts <= ceiling:
        return None
    return (
        f"perGpu {clients.per_gpu} × processes {clients.processes} = {count_of(contexts, 'MPS context')}, but the "
        f"driver of node {candidate.node.name} takes {ceiling}: lower one of them"
    )


def memory_overcommitted(candidate: Candidate) -> str | None:
    share, gpu = candidate.share, candidate.gpu
    clients = share.clients
    if share.whole:
        return None
    if share.by_claims:
        return _no_room_for_a_claim(candidate)
    need = clients.per_gpu * share.memory_default_mib + CONTEXT_RESERVE_MIB
    if clients.memory.overcommit or not gpu.memory_mib:
        return None
    if need <= gpu.memory_mib:
        return _limits_overcommitted(candidate)
    return (
        f"perGpu {clients.per_gpu} × memory.default {clients.memory.default} + {CONTEXT_RESERVE_MIB}Mi = "
        f"{format_mib(need)}, but {candidate} has {gpu.memory_mib}Mi: lower one of them or set memory.overcommit"
    )


def _limits_overcommitted(candidate: Candidate) -> str | None:
    """What the clients of a full GPU may use together, however much of it they borrow, is bounded by the share."""
    share, gpu = candidate.share, candidate.gpu
    limits, need = share.limits_memory, share.full_gpu_limits_mib
    if limits is None or need <= limits.overcommit_percent * gpu.memory_mib // 100:
        return None
    percent = -(-100 * need // gpu.memory_mib)
    return (
        f"perGpu {share.clients.per_gpu} × memory.limits.max {limits.max} + {CONTEXT_RESERVE_MIB}Mi = "
        f"{format_mib(need)}, {percent} percent of the {gpu.memory_mib}Mi of {candidate}: lower memory.limits.max or "
        f"raise memory.limits.overcommitPercent, which is {limits.overcommit_percent}"
    )


def _no_room_for_a_claim(candidate: Candidate) -> str | None:
    """The scheduler adds claims up, so a GPU needs memory for the default claim only; larger claims go elsewhere."""
    share, gpu = candidate.share, candidate.gpu
    need = share.memory_default_mib + CONTEXT_RESERVE_MIB
    if share.clients.memory.overcommit or not gpu.memory_mib or need <= gpu.memory_mib:
        return None
    return (
        f"memory.default {share.clients.memory.default} + {CONTEXT_RESERVE_MIB}Mi = {format_mib(need)}, but "
        f"{candidate} has {gpu.memory_mib}Mi: lower memory.default"
    )


def held_by_share(candidate: Candidate) -> str | None:
    if candidate.holder is None or candidate.holder == candidate.share.name:
        return None
    if candidate.leaves:
        return f'{candidate} is free once GpuShare "{candidate.holder}" has given it back'
    return f'{candidate} belongs to GpuShare "{candidate.holder}"'


def resource_name_taken(candidate: Candidate) -> str | None:
    """This rule is not in the chain: whose a name is depends on the plan (`resource_names`). `holder`: the share
    whose it is."""
    share, node = candidate.share, candidate.node.name
    if candidate.holder:
        return (
            f'GpuShare "{candidate.holder}" offers {share.resource} on node {node}, and a name is one share\'s there: '
            "select the GPUs by one of the two, or make this share with another spec.wholeGpus.resourceName"
        )
    return (
        f"another device plugin offers {share.resource} on node {node}: take the node from it, or make this share with "
        "another spec.wholeGpus.resourceName"
    )


def per_node_reached(candidate: Candidate) -> str | None:
    per_node = candidate.share.spec.gpus.per_node
    if per_node is None or candidate.taken < per_node:
        return None
    return f"{candidate} is left out: spec.gpus.perNode is {per_node}"


NODE_FACTS: tuple[tuple[GpuReason, Fact], ...] = (
    (GpuReason.NODE_NOT_READY, node_not_ready),
    (GpuReason.AGENT_SILENT, agent_silent),
)
GPU_FACTS: tuple[tuple[GpuReason, Fact], ...] = (
    (GpuReason.HELD_BY_NVIDIA_PLUGIN, held_by_nvidia_plugin),
    (GpuReason.HELD_BY_NVIDIA_DRA, held_by_nvidia_dra),
    (GpuReason.HELD_BY_PODS, held_by_pods),
    (GpuReason.DRIVER_UPGRADING, driver_upgrading),
    (GpuReason.MIG_ENABLED, mig_enabled),
    (GpuReason.COMPUTE_CAPABILITY_TOO_LOW, compute_capability_too_low),
    (GpuReason.FOREIGN_COMPUTE_MODE, foreign_compute_mode),
    (GpuReason.IN_USE, in_use),
    (GpuReason.GPU_LOST, gpu_lost),
)
FACTS = (*NODE_FACTS, *GPU_FACTS)
"""The rules that look at neither the share nor the plan."""

CHAIN: tuple[tuple[GpuReason, Rule], ...] = (
    *NODE_FACTS,
    (GpuReason.PRODUCT_MISMATCH, product_mismatch),
    *GPU_FACTS,
    (GpuReason.CLIENT_CEILING, client_ceiling),
    (GpuReason.MEMORY_OVERCOMMITTED, memory_overcommitted),
    (GpuReason.HELD_BY_SHARE, held_by_share),
    (GpuReason.PER_NODE_REACHED, per_node_reached),
)
"""All rules, in the order in which they are reported."""

GIVE_UP_RULES: tuple[tuple[GpuReason, Rule], ...] = (
    (GpuReason.PRODUCT_MISMATCH, product_mismatch),
    (GpuReason.CLIENT_CEILING, client_ceiling),
    (GpuReason.MEMORY_OVERCOMMITTED, memory_overcommitted),
    (GpuReason.DRIVER_UPGRADING, driver_leaving),
)
"""per_node_reached is not among them: it decides between GPUs, not about one."""


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """All that decides whether a share may take a GPU that nobody holds: of one profile, all GPUs or none.

    `fact`: the first of FACTS that keeps every share from it. The rest is what GIVE_UP_RULES read.
    """

    fact: GpuReason | None
    product: str
    memory_mib: int
    client_ceiling: int
    driver_leaving: bool


def profile_of(found_gpu: FoundGpu) -> GpuProfile:
    fact = next((reason for reason, holds in FACTS if holds(found_gpu) is not None), None)
    gpu_node = found_gpu.node.gpu_node
    ceiling = gpu_node.status.client_ceiling if gpu_node else 0
    leaving = driver_upgrade.leaving(found_gpu.node.labels)
    return GpuProfile(fact, found_gpu.gpu.product, found_gpu.gpu.memory_mib, ceiling, leaving)


def first_refusal(candidate: Candidate, rules: tuple[tuple[GpuReason, Rule], ...] = CHAIN) -> Refusal | None:
    for reason, rule in rules:
        message = rule(candidate)
        if message is not None:
            return Refusal(reason, message)
    return None
