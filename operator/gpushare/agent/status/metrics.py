"""What a node's agent tells Prometheus of the moment: GPUs, slots, daemons, and who uses how much. Pure.

Labels: `uuid` is the GPU's NVML UUID; `namespace`, `pod` and `container` are Kubernetes names and the only ones that a
tenant chooses. Bounded by what is there: at most 32 GPUs on a node, and on each of them as many containers as the
driver takes MPS contexts (48, or 60 from driver 590).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpushare.agent.gpus.inventory import GpuView
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.agent.reconcile.slots import offered_slots
from gpushare.agent.usage.usage import Reading
from gpushare.api.gpunode import Finding, Uuid
from gpushare.api.quantity import MIB
from gpushare.grant.model import Grant
from gpushare.metrics.families import Family, Sample
from gpushare.mps.wire import DaemonState

GPU = ("uuid",)
SHARED = ("share", "uuid")
CONTAINER = ("namespace", "pod", "container", "share", "uuid")

GPU_INFO = Family(
    "gpushare_gpu_info",
    "1 for each GPU of the node; simulated says whether it is hardware.",
    ("uuid", "index", "product", "simulated"),
)
GPU_MEMORY = Family("gpushare_gpu_memory_bytes", "Memory of the GPU.", GPU)
GPU_LOST = Family("gpushare_gpu_lost", "1 where NVML no longer reaches the GPU, else 0.", GPU)
GPU_AGE = Family("gpushare_gpu_reading_age_seconds", "Since NVML last showed the GPU and its processes.", GPU)
CLIENT_CEILING = Family("gpushare_mps_clients_limit", "MPS client processes that the driver takes on the GPU.", GPU)
SLOTS = Family("gpushare_slots", "Slots that the share has on the GPU by its spec (perGpu).", SHARED)
OFFERED = Family(
    "gpushare_slots_offered", "Slots that the kubelet is offered: those held and, while clients are taken, free ones.",
    SHARED,
)  # fmt: skip
HELD = Family("gpushare_slots_held", "Slots that containers hold, or that were just handed out.", SHARED)
CLIENTS = Family("gpushare_mps_clients", "MPS client processes that NVML shows on the GPU.", SHARED)
BYPASSING = Family(
    "gpushare_bypassing_processes",
    "Processes on the shared GPU that are no MPS clients, so that no limit binds them; our own servers do not count.",
    SHARED,
)
READY = Family("gpushare_daemon_ready", "1 where the GPU's MPS daemon is verified and takes clients, else 0.", SHARED)
REASON = Family(
    "gpushare_daemon_reason", "1 for the reason that holds now (docs/troubleshooting.md).", (*SHARED, "reason")
)
RESTARTS = Family(
    "gpushare_daemon_restarts",
    "Starts of the GPU's control daemon after its first, by its supervisor.",
    SHARED,
    "counter",
)
THREAD_LIMIT = Family(
    "gpushare_daemon_threads_limit_ratio", "Ceiling of a client process, as read back: 1 is all SMs.", SHARED
)
MEMORY_LIMIT = Family("gpushare_daemon_memory_limit_bytes", "Ceiling of a client process, as read back.", SHARED)
FAULTS = Family(
    "gpushare_gpu_faults",
    "Fatal faults of the GPU's MPS server that its supervisor saw; each ends all clients of the GPU.",
    SHARED,
    "counter",
)
FAULTED = Family(
    "gpushare_faulted_clients",
    "Clients of a faulted server that are still there: while they are, no new one starts.",
    SHARED,
)
SERVERS_LOST = Family(
    "gpushare_servers_lost", "Times the GPU's MPS server ended though nobody ended it.", SHARED, "counter"
)
CONTEXTS = Family(
    "gpushare_mps_contexts", "Client contexts that the MPS server holds, of those that the driver allows.", SHARED
)
FINDINGS = Family(
    "gpushare_findings",
    "Containers and processes found to use the GPU otherwise than granted, by reason (docs/events.md).",
    (*SHARED, "reason"),
)
OBSERVATION_AGE = Family(
    "gpushare_observation_age_seconds", "Since NVML showed what the containers' figures tell of the GPU.", SHARED
)
USED = Family("gpushare_container_memory_used_bytes", "GPU memory of the container's processes, by NVML.", CONTAINER)
GRANTED = Family("gpushare_container_memory_granted_bytes", "GPU memory that the container may use.", CONTAINER)
THREADS = Family(
    "gpushare_container_threads_granted_ratio",
    "Part of the GPU's SMs that each process of the container may use.",
    CONTAINER,
)
PROCESSES = Family("gpushare_container_processes", "Processes of the container on the GPU.", CONTAINER)
PROCESSES_GRANTED = Family(
    "gpushare_container_processes_granted", "Processes that the container may have on the GPU.", CONTAINER
)
NVML_UP = Family("gpushare_nvml_up", "1 where NVML answered last time, else 0.")
KUBELET_UP = Family(
    "gpushare_kubelet_up", "1 where the kubelet's last list of held slots came and was plausible, else 0."
)
KUBELET_AGE = Family("gpushare_kubelet_reading_age_seconds", "Since the last plausible reading of the kubelet.")

FAMILIES = (
    GPU_INFO, GPU_MEMORY, GPU_LOST, GPU_AGE, CLIENT_CEILING, SLOTS, OFFERED, HELD, CLIENTS, BYPASSING, READY,
    REASON, RESTARTS, FAULTS, FAULTED, SERVERS_LOST, CONTEXTS, FINDINGS, THREAD_LIMIT, MEMORY_LIMIT,
    OBSERVATION_AGE, USED, GRANTED, THREADS, PROCESSES, PROCESSES_GRANTED, NVML_UP, KUBELET_UP, KUBELET_AGE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """The agent's latest values; nothing in it changes any more. Times are CLOCK_BOOTTIME seconds."""

    now: float
    simulated: bool
    views: Mapping[Uuid, GpuView]
    client_ceiling: int | None
    decisions: Mapping[Uuid, GpuDecision]
    states: Mapping[Uuid, DaemonState | None]
    """Of the GPUs taken."""
    observed: Mapping[Uuid, Reading]
    findings: Sequence[Finding]
    nvml_error: str
    kubelet_error: str
    kubelet_read_at: float | None


WITHOUT_DRIVER = NodeSnapshot(0.0, False, {}, None, {}, {}, {}, (), "waiting for the NVIDIA driver", "", None)


def samples(taken: NodeSnapshot) -> Iterator[Sample]:
    yield NVML_UP.of(not taken.nvml_error)
    yield KUBELET_UP.of(taken.kubelet_read_at is not None and not taken.kubelet_error)
    if taken.kubelet_read_at is not None:
        yield KUBELET_AGE.of(taken.now - taken.kubelet_read_at)
    for view in taken.views.values():
        yield from _gpu(view, taken)
    for decision in taken.decisions.values():
        yield from _shared(decision, taken.states.get(decision.plan.uuid))
    for reading in taken.observed.values():
        yield from _observed(reading, taken.now)
    for found, count in Counter((item.share, item.uuid, item.reason) for item in taken.findings).items():
        yield FINDINGS.of(count, *found)


def _gpu(view: GpuView, taken: NodeSnapshot) -> Iterator[Sample]:
    info = view.info
    yield GPU_INFO.of(1, info.uuid, str(info.index), info.product, str(taken.simulated).lower())
    yield GPU_MEMORY.of(info.memory_mib * MIB, info.uuid)
    yield GPU_LOST.of(view.lost, info.uuid)
    yield GPU_AGE.of(taken.now - view.seen_at, info.uuid)
    if taken.client_ceiling is not None:
        yield CLIENT_CEILING.of(taken.client_ceiling, info.uuid)


def _shared(decision: GpuDecision, state: DaemonState | None) -> Iterator[Sample]:
    offer, where = decision.offer, (decision.plan.share, decision.plan.uuid)
    yield SLOTS.of(offer.per_gpu, *where)
    yield OFFERED.of(len(offered_slots(offer.per_gpu, offer.held, offer.accepting, offer.lost)), *where)
    yield HELD.of(len(decision.held), *where)
    yield READY.of(decision.verdict.ready, *where)
    yield REASON.of(1, *where, decision.verdict.reason.value)
    if state is not None:
        yield RESTARTS.of(state.restarts, *where)
        yield FAULTS.of(state.faults, *where)
        yield FAULTED.of(len(state.faulted_clients), *where)
        yield SERVERS_LOST.of(state.servers_lost, *where)
        yield CONTEXTS.of(state.contexts, *where)
        if state.in_force is not None:
            yield THREAD_LIMIT.of(state.in_force.threads / 100, *where)
            yield MEMORY_LIMIT.of(state.in_force.memory_mib * MIB, *where)


def _observed(reading: Reading, now: float) -> Iterator[Sample]:
    where = (reading.share, reading.uuid)
    processes = [process for usage in reading.usages for process in usage.listed]
    yield OBSERVATION_AGE.of(now - reading.taken_at, *where)
    yield CLIENTS.of(sum(process.mps for process in processes), *where)
    yield BYPASSING.of(sum(not process.mps for process in processes), *where)
    yield from _containers(reading)


def _containers(reading: Reading) -> Iterator[Sample]:
    """A container may be listed twice, through MPS and past it; a process of the host is nobody's."""
    memory: Counter[tuple[str, ...]] = Counter()
    processes: Counter[tuple[str, ...]] = Counter()
    granted: dict[tuple[str, ...], Grant] = {}
    for usage in reading.usages:
        if not usage.pod:
            continue
        where = (usage.namespace, usage.pod, usage.container, usage.share, usage.uuid)
        memory[where] += usage.memory_mib
        processes[where] += usage.processes
        if usage.grant is not None:
            granted[where] = usage.grant
    for container, mib in memory.items():
        yield USED.of(mib * MIB, *container)
        yield PROCESSES.of(processes[container], *container)
    for container, grant in granted.items():
        yield GRANTED.of(grant.memory_mib * MIB, *container)
        yield THREADS.of(grant.threads / 100, *container)
        yield PROCESSES_GRANTED.of(grant.processes, *container)
