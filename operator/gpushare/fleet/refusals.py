"""Why a share cannot take a GPU: an ordered chain of small rules, of which the first that applies is reported; and
which of its selectors matches nothing at all.

Each rule gets the same input and answers with a sentence that names what holds the GPU and what to do, or with None.
A new rule is a new function in one of the lists.

SPEC_RULES follow from the share's own spec; they also make a share give up a GPU that it holds, once idle. All others
are about the node; they never take a GPU away from the share that holds it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from gpushare.api.conditions import GpuReason
from gpushare.api.gpunode import ComputeMode, ComputeModePolicy, Gpu
from gpushare.api.gpushare import GpuShare
from gpushare.api.meta import LabelSelector, Requirement, SelectorOperator
from gpushare.api.quantity import format_mib
from gpushare.fleet.model import NodeView

CONTEXT_RESERVE_MIB = 512
"""MiB of a GPU that no client can have: the MPS server's context (66 MiB measured) and the driver's own."""

LOWEST_COMPUTE_CAPABILITY = (7, 0)
"""Volta: from there on MPS clients have address spaces and limits of their own (NVIDIA's MPS documentation)."""

NVIDIA_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")
SHOWN = 3
"""Of what there is instead of what a selector names, the nearest are shown."""
UPGRADE_LABEL = "nvidia.com/gpu-driver-upgrade-state"
"""Written by NVIDIA's GPU Operator; empty and `upgrade-done` mean that no upgrade is in progress."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GPU and a share that may take it.

    `holder`: the share that holds it, or got it earlier in this plan. `taken`: GPUs that the share has on this node.
    """

    share: GpuShare
    node: NodeView
    gpu: Gpu
    holder: str | None
    nvidia_dra: bool
    taken: int

    def __str__(self) -> str:
        return f"GPU {self.gpu.uuid} of node {self.node.name}"


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: GpuReason
    message: str


Rule = Callable[[Candidate], str | None]


def node_not_ready(candidate: Candidate) -> str | None:
    if candidate.node.ready:
        return None
    return f"node {candidate.node.name} is not Ready"


def agent_silent(candidate: Candidate) -> str | None:
    if not candidate.node.silence:
        return None
    return f"node {candidate.node.name}: {candidate.node.silence}"


def product_mismatch(candidate: Candidate) -> str | None:
    products = candidate.share.spec.gpus.products
    if not products or candidate.gpu.product in products:
        return None
    return f'{candidate} is a "{candidate.gpu.product}", which spec.gpus.products does not name'


def held_by_nvidia_plugin(candidate: Candidate) -> str | None:
    offered = sorted(name for name in candidate.node.allocatable if name.startswith(NVIDIA_RESOURCES))
    if not offered:
        return None
    return (
        f"node {candidate.node.name} offers {offered[0]}: take it from NVIDIA's device plugin, "
        "with the GPU Operator by the node label nvidia.com/gpu.deploy.device-plugin=false"
    )


def held_by_nvidia_dra(candidate: Candidate) -> str | None:
    if not candidate.nvidia_dra:
        return None
    name = candidate.node.name
    return f"node {name} has a ResourceSlice of gpu.nvidia.com: keep NVIDIA's DRA driver off this node first"


def held_by_pods(candidate: Candidate) -> str | None:
    gpu_node = candidate.node.gpu_node
    holders = gpu_node.status.foreign_holders if gpu_node else []
    if not holders:
        return None
    first = min(holders, key=lambda holder: (holder.namespace, holder.pod))
    more = f" and {len(holders) - 1} more" if len(holders) > 1 else ""
    return (
        f"pod {first.namespace}/{first.pod}{more} of node {candidate.node.name} holds {first.resource}: "
        "the GPUs are free once it has ended"
    )


def driver_upgrading(candidate: Candidate) -> str | None:
    state = candidate.node.labels.get(UPGRADE_LABEL, "")
    if state in ("", "upgrade-done"):
        return None
    return f"the driver of node {candidate.node.name} is being upgraded ({UPGRADE_LABEL}={state})"


def mig_enabled(candidate: Candidate) -> str | None:
    if not candidate.gpu.mig_enabled:
        return None
    return f"{candidate} is in MIG mode, which is not supported: switch it off with `nvidia-smi -mig 0`"


def compute_capability_too_low(candidate: Candidate) -> str | None:
    capability = candidate.gpu.compute_capability
    major, _, minor = capability.partition(".")
    if not (major.isdigit() and minor.isdigit()) or (int(major), int(minor)) >= LOWEST_COMPUTE_CAPABILITY:
        return None
    return f"{candidate} has compute capability {capability}; MPS limits need 7.0 or higher"


def foreign_compute_mode(candidate: Candidate) -> str | None:
    gpu, gpu_node = candidate.gpu, candidate.node.gpu_node
    if gpu.compute_mode is ComputeMode.DEFAULT or gpu.original_compute_mode is not None:
        return None
    left = gpu_node is not None and gpu_node.status.compute_mode_policy is ComputeModePolicy.LEAVE
    if left and gpu.compute_mode is not ComputeMode.PROHIBITED:
        return None
    return f"{candidate} is in compute mode {gpu.compute_mode}, set by somebody else: `nvidia-smi -c DEFAULT` frees it"


def in_use(candidate: Candidate) -> str | None:
    processes = candidate.gpu.foreign_processes
    if not processes:
        return None
    first = min(processes, key=lambda process: process.pid)
    more = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
    named = f" ({first.command})" if first.command else ""
    return f"{candidate} is used by process {first.pid}{named}{more}, outside of gpushare"


def gpu_lost(candidate: Candidate) -> str | None:
    if not candidate.gpu.lost:
        return None
    return f"{candidate} cannot be reached any more: see the node's kernel log for its Xid; it may need a reset"


def client_ceiling(candidate: Candidate) -> str | None:
    gpu_node = candidate.node.gpu_node
    ceiling = gpu_node.status.client_ceiling if gpu_node else 0
    clients, contexts = candidate.share.spec.clients, candidate.share.contexts_per_gpu
    if not ceiling or contexts <= ceiling:
        return None
    return (
        f"perGpu {clients.per_gpu} × processes {clients.processes} = {contexts} MPS contexts, but the driver of node "
        f"{candidate.node.name} takes {ceiling}: lower one of them"
    )


def memory_overcommitted(candidate: Candidate) -> str | None:
    share, gpu = candidate.share, candidate.gpu
    clients = share.spec.clients
    if share.by_claims:
        return _no_room_for_a_claim(candidate)
    need = clients.per_gpu * share.memory_default_mib + CONTEXT_RESERVE_MIB
    if clients.memory.overcommit or not gpu.memory_mib or need <= gpu.memory_mib:
        return None
    return (
        f"perGpu {clients.per_gpu} × memory.default {clients.memory.default} + {CONTEXT_RESERVE_MIB}Mi = "
        f"{format_mib(need)}, but {candidate} has {gpu.memory_mib}Mi: lower one of them or set memory.overcommit"
    )


def claimable_mib(share: GpuShare, gpu_mib: int) -> int:
    """MiB of a GPU that all its claims together may be granted; with over-commit the number of clients bounds them."""
    usable = max(0, gpu_mib - CONTEXT_RESERVE_MIB)
    clients = share.spec.clients
    return max(usable, clients.per_gpu * share.memory_max_mib) if clients.memory.overcommit else usable


def _no_room_for_a_claim(candidate: Candidate) -> str | None:
    """The scheduler adds claims up, so a GPU needs memory for the default claim only; larger claims go elsewhere."""
    share, gpu = candidate.share, candidate.gpu
    need = share.memory_default_mib + CONTEXT_RESERVE_MIB
    if share.spec.clients.memory.overcommit or not gpu.memory_mib or need <= gpu.memory_mib:
        return None
    return (
        f"memory.default {share.spec.clients.memory.default} + {CONTEXT_RESERVE_MIB}Mi = {format_mib(need)}, but "
        f"{candidate} has {gpu.memory_mib}Mi: lower memory.default"
    )


def held_by_share(candidate: Candidate) -> str | None:
    if candidate.holder is None or candidate.holder == candidate.share.name:
        return None
    return f'{candidate} belongs to GpuShare "{candidate.holder}"'


def per_node_reached(candidate: Candidate) -> str | None:
    per_node = candidate.share.spec.gpus.per_node
    if per_node is None or candidate.taken < per_node:
        return None
    return f"{candidate} is left out: spec.gpus.perNode is {per_node}"


CHAIN: tuple[tuple[GpuReason, Rule], ...] = (
    (GpuReason.NODE_NOT_READY, node_not_ready),
    (GpuReason.AGENT_SILENT, agent_silent),
    (GpuReason.PRODUCT_MISMATCH, product_mismatch),
    (GpuReason.HELD_BY_NVIDIA_PLUGIN, held_by_nvidia_plugin),
    (GpuReason.HELD_BY_NVIDIA_DRA, held_by_nvidia_dra),
    (GpuReason.HELD_BY_PODS, held_by_pods),
    (GpuReason.DRIVER_UPGRADING, driver_upgrading),
    (GpuReason.MIG_ENABLED, mig_enabled),
    (GpuReason.COMPUTE_CAPABILITY_TOO_LOW, compute_capability_too_low),
    (GpuReason.FOREIGN_COMPUTE_MODE, foreign_compute_mode),
    (GpuReason.IN_USE, in_use),
    (GpuReason.GPU_LOST, gpu_lost),
    (GpuReason.CLIENT_CEILING, client_ceiling),
    (GpuReason.MEMORY_OVERCOMMITTED, memory_overcommitted),
    (GpuReason.HELD_BY_SHARE, held_by_share),
    (GpuReason.PER_NODE_REACHED, per_node_reached),
)
"""All rules, in the order in which they are reported."""

SPEC_RULES: tuple[tuple[GpuReason, Rule], ...] = (
    (GpuReason.PRODUCT_MISMATCH, product_mismatch),
    (GpuReason.CLIENT_CEILING, client_ceiling),
    (GpuReason.MEMORY_OVERCOMMITTED, memory_overcommitted),
)
"""per_node_reached is not among them: it decides between GPUs, not about one."""


def first_refusal(candidate: Candidate, rules: tuple[tuple[GpuReason, Rule], ...] = CHAIN) -> Refusal | None:
    for reason, rule in rules:
        message = rule(candidate)
        if message is not None:
            return Refusal(reason, message)
    return None


def no_product(products: Iterable[str], found: Mapping[str, int]) -> str:
    """Why `products` match none of the selected nodes' GPUs. `found`: how many there are of each product."""
    missing = [f'"{name}"' for name in products]
    named = ", ".join(missing[:SHOWN]) + (f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else "")
    present = _nearest(products, found, '{count} "{name}"')
    return f"spec.gpus.products names {named}, but the GPUs of the selected nodes are {present}"


def no_node(selector: LabelSelector, nodes: Iterable[NodeView]) -> str:
    """Why `selector` matches none of `nodes`: the first of its requirements that no node with GPUs meets."""
    labels = [dict(node.labels) for node in nodes if node.has_report]
    if not labels:
        return "no agent reports a GPU on any node: look at the DaemonSet gpushare-agent and its nodeSelector"
    parts = [
        *(Requirement(key=key, operator=SelectorOperator.IN, values=[it]) for key, it in selector.match_labels.items()),
        *selector.match_expressions,
    ]
    whole = f"spec.nodeSelector matches none of the {len(labels)} nodes with GPUs"
    for part in parts:
        alone = LabelSelector(match_expressions=[part])
        if not any(alone.matches(found) for found in labels):
            return f"{whole}: {_requirement(part)}, and there {_values(part, labels)}"
    return f"{whole}: some meet one of its requirements, none meets all of them"


def _requirement(part: Requirement) -> str:
    values = f" {', '.join(part.values[:SHOWN])}" if part.values else ""
    return f"it wants the label {part.key} {part.operator}{values}"


def _values(part: Requirement, labels: Iterable[Mapping[str, str]]) -> str:
    found: dict[str, int] = {}
    for node in labels:
        if part.key in node:
            found[node[part.key]] = found.get(node[part.key], 0) + 1
    return f"it is {_nearest(part.values, found, '{name} ({count})')}" if found else "no node has it"


def _nearest(wanted: Iterable[str], found: Mapping[str, int], form: str) -> str:
    """The SHOWN of `found` that look most like one of `wanted`, each by `form`, and how many others there are."""
    names = [text[:64] for text in wanted][:16]

    def likeness(name: str) -> float:
        return max((SequenceMatcher(None, name[:64].lower(), it.lower()).ratio() for it in names), default=0.0)

    # However many products nodes report, few are compared: the most frequent.
    frequent = sorted(found, key=lambda name: (-found[name], name))[:64]
    shown = sorted(frequent, key=lambda name: (-likeness(name), name))[:SHOWN]
    listed = ", ".join(form.format(count=found[name], name=name) for name in shown)
    return listed + (f" and {len(found) - SHOWN} others" if len(found) > SHOWN else "")
