"""The agent's gauges, and the counters of supervisors: GPUs, slots, MPS daemons, and who uses how much. Pure.

Labels: `uuid` is the GPU's NVML UUID; `namespace`, `pod` and `container` are Kubernetes names and the only labels that
a tenant chooses; `protected` has two of them.

Guarantees: the number of series is bounded: at most 32 GPUs on a node, and on each of them as many containers as the
driver takes MPS contexts (48, or 60 from driver 590).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.agent.gpus.view import GpuView
from gpushare.agent.observe.activity import ContainerActivity
from gpushare.agent.observe.borrowing import Shortage, borrowings
from gpushare.agent.observe.charges import Account
from gpushare.agent.observe.unused import RunningPart
from gpushare.agent.observe.usage import Reading
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.api.gpunode import Borrower, Finding, ShareName, Uuid
from gpushare.api.quantity import MIB
from gpushare.grant.model import Grant
from gpushare.metrics.families import Family, Sample
from gpushare.mps.wire import BrokerState, DaemonState

GPU = ("uuid",)
SHARED = ("share", "uuid")
CONTAINER = ("namespace", "pod", "container", "share", "uuid")
CLASSED = (*CONTAINER, "class")

GPU_INFO = Family(
    "gpushare_gpu_info",
    "1 for each GPU of the node; the label simulated is true if it is no hardware.",
    ("uuid", "index", "product", "simulated"),
)
GPU_MEMORY = Family("gpushare_gpu_memory_bytes", "Memory of the GPU.", GPU)
GPU_LOST = Family("gpushare_gpu_lost", "1 if NVML no longer reaches the GPU, else 0.", GPU)
GPU_AGE = Family("gpushare_gpu_reading_age_seconds", "Seconds since NVML last showed the GPU and its processes.", GPU)
GPU_UTILIZATION = Family(
    "gpushare_gpu_utilization_ratio",
    "Part of NVML's last sample period, at most a second, in which a kernel ran on the GPU, however few SMs it took.",
    GPU,
)
GPU_FREE = Family("gpushare_gpu_memory_free_bytes", "Memory of the GPU that nobody has allocated, by NVML.", GPU)
CLIENT_CEILING = Family("gpushare_mps_clients_limit", "MPS client processes that the driver takes on the GPU.", GPU)
SLOTS = Family(
    "gpushare_slots", "Slots that the share has on the GPU by its spec (perGpu, and queue.slots beyond).", SHARED
)
PLACES = Family(
    "gpushare_gpu_places",
    "Containers that may have CUDA contexts on the GPU at the same time; no series of a share without a queue.",
    SHARED,
)
PLACES_USED = Family("gpushare_gpu_places_used", "Containers that have a place on the GPU.", SHARED)
PLACES_WAITING = Family("gpushare_gpu_places_waiting", "Containers that wait for a place on the GPU.", SHARED)
PLACE_WAITS = Family(
    "gpushare_place_wait_seconds",
    "Waits for a place on the GPU that ended with one; a container that got it at once waited for 0 seconds.",
    SHARED,
    "histogram",
)
OFFERED = Family(
    "gpushare_slots_offered",
    "Slots offered to the kubelet: held ones and, while the GPU takes clients, free ones.",
    SHARED,
)
HELD = Family("gpushare_slots_held", "Slots that containers hold, or that Allocate has just handed out.", SHARED)
CLIENTS = Family("gpushare_mps_clients", "MPS client processes that NVML shows on the GPU.", SHARED)
BYPASSING = Family(
    "gpushare_bypassing_processes",
    "Non-MPS processes on the shared GPU, which no limit binds; our own servers do not count.",
    SHARED,
)
READY = Family("gpushare_daemon_ready", "1 if the GPU's MPS daemon is verified and takes clients, else 0.", SHARED)
REASON = Family("gpushare_daemon_reason", "1 for the present reason (docs/reasons.md).", (*SHARED, "reason"))
RESTARTS = Family(
    "gpushare_daemon_restarts",
    "Times that the GPU's MPS daemon was started again after it had ended by itself, or with its container.",
    SHARED,
    "counter",
)
BROKER_RESTARTS = Family(
    "gpushare_broker_restarts",
    "Times that the GPU's attach broker was started again after it had ended by itself.",
    SHARED,
    "counter",
)
ABANDONED = Family(
    "gpushare_attaches_abandoned",
    "Attaches in whose midst the process hung up by itself, or ended, since the GPU's attach broker started.",
    SHARED,
    "counter",
)
THREAD_LIMIT = Family(
    "gpushare_daemon_threads_limit_ratio",
    "Thread limit of a client, as read back from the MPS daemon: 1 is all SMs.",
    SHARED,
)
MEMORY_LIMIT = Family(
    "gpushare_daemon_memory_limit_bytes", "Memory limit of a client, as read back from the MPS daemon.", SHARED
)
FAULTS = Family(
    "gpushare_gpu_faults",
    "Fatal faults of the GPU's MPS server that its supervisor saw; each takes the contexts of all clients of the GPU.",
    SHARED,
    "counter",
)
FAULTED = Family(
    "gpushare_faulted_clients",
    "Faulted clients of the GPU: until all of them have ended, no new client starts.",
    SHARED,
)
SERVERS_LOST = Family("gpushare_servers_lost", "Times that the GPU's MPS server ended by itself.", SHARED, "counter")
CONTEXTS = Family(
    "gpushare_mps_contexts", "Client contexts that the MPS server holds, of those that the driver allows.", SHARED
)
FINDINGS = Family(
    "gpushare_findings",
    "Findings: containers and processes that use the GPU beyond their grant, by reason (docs/events.md).",
    (*SHARED, "reason"),
)
SHORT = Family(
    "gpushare_gpu_memory_short_bytes",
    "Memory that clients have reserved, do not use, and could not get now; no series of a share that lets none borrow.",
    SHARED,
)
OBSERVATION_AGE = Family(
    "gpushare_observation_age_seconds",
    "Age in seconds of the NVML reading behind the metrics of the GPU's containers.",
    SHARED,
)
USED = Family("gpushare_container_memory_used_bytes", "GPU memory of the container's processes, by NVML.", CONTAINER)
GRANTED = Family("gpushare_container_memory_granted_bytes", "GPU memory reserved for the container.", CONTAINER)
LIMIT = Family(
    "gpushare_container_memory_limit_bytes",
    "GPU memory that the container may use at most: what is reserved for it, and what it may borrow.",
    CONTAINER,
)
BORROWED = Family(
    "gpushare_container_memory_borrowed_bytes",
    "GPU memory that the container uses above what is reserved for it; no series while it borrows none.",
    CONTAINER,
)
THREADS = Family(
    "gpushare_container_threads_granted_ratio",
    "Part of the GPU's SMs granted to each process of the container.",
    CONTAINER,
)
PROCESSES = Family("gpushare_container_processes", "Processes of the container on the GPU.", CONTAINER)
PROCESSES_GRANTED = Family(
    "gpushare_container_processes_granted", "Processes on the GPU granted to the container.", CONTAINER
)
ATTACHED = Family(
    "gpushare_container_attached_seconds",
    "Time since the first of the container's clients on the GPU attached; no series where no attach broker has told.",
    CONTAINER,
)
LAST_ATTACHED = Family(
    "gpushare_container_last_attached_seconds",
    "Time since the latest of the container's clients on the GPU attached; no series where no attach broker has told.",
    CONTAINER,
)
ACTIVE = Family(
    "gpushare_container_active_seconds",
    "Time in which the container's processes say that they had work under way on the GPU, since this agent looks.",
    CLASSED,
    "counter",
)
LAUNCHES = Family(
    "gpushare_container_launches",
    "Kernels, graphs and large copies that the container's processes say that they launched, since this agent looks.",
    CLASSED,
    "counter",
)
GAVE_WAY = Family(
    "gpushare_container_gave_way_seconds",
    "Time for which the container's best-effort processes say that they held launches back, by protected pod "
    "(namespace/name; empty: one that is gone).",
    (*CONTAINER, "protected"),
    "counter",
)
LAST_LAUNCH = Family(
    "gpushare_container_last_launch_seconds",
    "Time since the container's processes launched last, as they say; no series before their first launch.",
    CLASSED,
)
LONGEST = Family(
    "gpushare_container_longest_kernel_seconds",
    "The longest that a kernel, graph or copy of the container took, as its best-effort processes measured it.",
    CLASSED,
)
UNUSED = Family(
    "gpushare_container_unused_seconds",
    "Time since which the container has held a part of the GPU without a client on it; no series while it has one.",
    CONTAINER,
)
CHARGED = Family(
    "gpushare_charged_gpu_seconds",
    "GPU time charged to the namespace for the parts of the GPU that its containers hold (docs/chargeback.md); of "
    "`__idle__`: what nobody holds.",
    ("namespace", "share", "uuid", "product"),
    "counter",
)
NVML_UP = Family("gpushare_nvml_up", "1 if NVML answered the last time, else 0.")
KUBELET_UP = Family("gpushare_kubelet_up", "1 if the kubelet's last list of held slots came and was plausible, else 0.")
KUBELET_AGE = Family("gpushare_kubelet_reading_age_seconds", "Seconds since the last plausible reading of the kubelet.")

FAMILIES = (
    GPU_INFO, GPU_MEMORY, GPU_FREE, GPU_LOST, GPU_AGE, GPU_UTILIZATION, CLIENT_CEILING, SLOTS, OFFERED, HELD, PLACES,
    PLACES_USED, PLACES_WAITING, PLACE_WAITS, CLIENTS, BYPASSING, READY, REASON, RESTARTS, BROKER_RESTARTS, ABANDONED,
    FAULTS, FAULTED, SERVERS_LOST, CONTEXTS, FINDINGS, THREAD_LIMIT, MEMORY_LIMIT, SHORT, OBSERVATION_AGE, USED,
    GRANTED, LIMIT, BORROWED, THREADS, PROCESSES, PROCESSES_GRANTED, ATTACHED, LAST_ATTACHED, UNUSED, CHARGED, ACTIVE,
    LAUNCHES, LAST_LAUNCH, LONGEST, GAVE_WAY, NVML_UP, KUBELET_UP, KUBELET_AGE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """The agent's latest values, immutable. Times are CLOCK_BOOTTIME seconds."""

    now: float
    simulated: bool
    views: Mapping[Uuid, GpuView]
    client_ceiling: int | None
    decisions: Mapping[Uuid, GpuDecision]
    states: Mapping[Uuid, DaemonState | None]
    """state.json of the GPUs taken; None: the supervisor has written none."""
    observed: Mapping[Uuid, Reading]
    attached: Mapping[Uuid, Mapping[int, float]]
    """When processes attached, by PID, as far as that is known."""
    findings: Sequence[Finding]
    unused: Mapping[RunningPart, float]
    """Seconds without a client."""
    nvml_error: str
    kubelet_error: str
    kubelet_read_at: float | None
    borrowers: Sequence[Borrower] = ()
    shortages: Mapping[Uuid, Shortage] = field(default_factory=dict)
    """The shortage of each GPU whose clients may borrow memory."""
    activity: Sequence[ContainerActivity] = ()
    """Of the containers with a class."""
    brokers: Mapping[Uuid, BrokerState | None] = field(default_factory=dict)
    """broker.json of the GPUs taken; None: the broker has written none."""
    charged: Mapping[Account, float] = field(default_factory=dict)
    """GPU-seconds."""


WITHOUT_DRIVER = NodeSnapshot(0.0, False, {}, None, {}, {}, {}, {}, (), {}, "waiting for the NVIDIA driver", "", None)


def samples(snapshot: NodeSnapshot) -> Iterator[Sample]:
    yield NVML_UP.of(not snapshot.nvml_error)
    yield KUBELET_UP.of(snapshot.kubelet_read_at is not None and not snapshot.kubelet_error)
    if snapshot.kubelet_read_at is not None:
        yield KUBELET_AGE.of(snapshot.now - snapshot.kubelet_read_at)
    for view in snapshot.views.values():
        yield from _gpu(view, snapshot)
    for decision in snapshot.decisions.values():
        yield from _shared(decision, snapshot.states.get(decision.plan.uuid))
        if (broker := snapshot.brokers.get(decision.plan.uuid)) is not None:
            yield BROKER_RESTARTS.of(broker.restarts, decision.plan.share, decision.plan.uuid)
            yield ABANDONED.of(broker.abandoned, decision.plan.share, decision.plan.uuid)
            yield from _queued(broker, decision.plan.share)
    for reading in snapshot.observed.values():
        yield from _observed(reading, snapshot.now)
        yield from _borrowed(reading, snapshot.borrowers)
        if (lack := snapshot.shortages.get(reading.uuid)) is not None:
            yield SHORT.of(max(0, lack.mib) * MIB, reading.share, reading.uuid)
        yield from _attached(reading, snapshot.attached.get(reading.uuid, {}), snapshot.now)
    for labels, count in Counter((item.share, item.uuid, item.reason) for item in snapshot.findings).items():
        yield FINDINGS.of(count, *labels)
    for activity in snapshot.activity:
        yield from _active(activity, snapshot.now)
    for part, seconds in snapshot.unused.items():
        yield UNUSED.of(seconds, *part.container, part.share, part.uuid)
    for account, seconds in snapshot.charged.items():
        yield CHARGED.of(seconds, account.namespace, account.share, account.uuid, account.product)


def _gpu(view: GpuView, snapshot: NodeSnapshot) -> Iterator[Sample]:
    info = view.info
    yield GPU_INFO.of(1, info.uuid, str(info.index), info.product, str(snapshot.simulated).lower())
    yield GPU_MEMORY.of(info.memory_mib * MIB, info.uuid)
    if view.free_mib is not None and not view.lost:
        yield GPU_FREE.of(view.free_mib * MIB, info.uuid)
    yield GPU_LOST.of(view.lost, info.uuid)
    yield GPU_AGE.of(snapshot.now - view.seen_at, info.uuid)
    if view.utilization is not None and not view.lost:
        yield GPU_UTILIZATION.of(view.utilization / 100, info.uuid)
    if snapshot.client_ceiling is not None:
        yield CLIENT_CEILING.of(snapshot.client_ceiling, info.uuid)


def _shared(decision: GpuDecision, state: DaemonState | None) -> Iterator[Sample]:
    offer, where = decision.offer, (decision.plan.share, decision.plan.uuid)
    yield SLOTS.of(offer.per_gpu, *where)
    yield OFFERED.of(len(offer.slots()), *where)
    yield HELD.of(len(decision.held), *where)
    yield READY.of(decision.readiness.ready, *where)
    yield REASON.of(1, *where, decision.readiness.reason.value)
    if state is not None:
        yield RESTARTS.of(state.restarts, *where)
        yield FAULTS.of(state.faults, *where)
        yield FAULTED.of(len(state.faulted_clients), *where)
        yield SERVERS_LOST.of(state.servers_lost, *where)
        yield CONTEXTS.of(state.contexts, *where)
        if state.in_force is not None:
            yield THREAD_LIMIT.of(state.in_force.threads / 100, *where)
            yield MEMORY_LIMIT.of(state.in_force.memory_mib * MIB, *where)


def _queued(broker: BrokerState, share: ShareName) -> Iterator[Sample]:
    if broker.places is None:
        return
    where, waits = (share, broker.uuid), broker.waits
    yield PLACES.of(broker.places.limit, *where)
    yield PLACES_USED.of(len(broker.places.held), *where)
    yield PLACES_WAITING.of(broker.waiting, *where)
    buckets = [(bucket.seconds, bucket.count) for bucket in waits.buckets]
    yield PLACE_WAITS.distribution(buckets, waits.count, waits.seconds, *where)


def _observed(reading: Reading, now: float) -> Iterator[Sample]:
    where = (reading.share, reading.uuid)
    processes = [process for usage in reading.usages for process in usage.processes]
    yield OBSERVATION_AGE.of(now - reading.taken_at, *where)
    if not reading.whole:
        yield CLIENTS.of(sum(process.mps for process in processes), *where)
        yield BYPASSING.of(sum(not process.mps for process in processes), *where)
    yield from _containers(reading)


def _containers(reading: Reading) -> Iterator[Sample]:
    """A container has two usages if it uses the GPU through MPS and past it; processes of the host are left out."""
    memory: Counter[tuple[str, ...]] = Counter()
    processes: Counter[tuple[str, ...]] = Counter()
    granted: dict[tuple[str, ...], Grant] = {}
    for usage in reading.usages:
        if not usage.pod:
            continue
        where = (usage.namespace, usage.pod, usage.container, usage.share, usage.uuid)
        memory[where] += usage.memory_mib
        processes[where] += len(usage.processes)
        if usage.grant is not None:
            granted[where] = usage.grant
    for container, mib in memory.items():
        yield USED.of(mib * MIB, *container)
        yield PROCESSES.of(processes[container], *container)
    for container, grant in granted.items():
        yield GRANTED.of(grant.memory_mib * MIB, *container)
        yield LIMIT.of(grant.limit_mib * MIB, *container)
        yield THREADS.of(grant.threads / 100, *container)
        yield PROCESSES_GRANTED.of(grant.processes, *container)


def _borrowed(reading: Reading, borrowers: Sequence[Borrower]) -> Iterator[Sample]:
    """What those that the API lists borrow now."""
    listed = {(borrowing.uuid, borrowing.pod_uid, borrowing.container) for borrowing in borrowers}
    for borrowing in borrowings(reading):
        usage = borrowing.usage
        if (usage.uuid, usage.pod_uid, usage.container) in listed:
            where = (usage.namespace, usage.pod, usage.container, usage.share, usage.uuid)
            yield BORROWED.of(borrowing.mib * MIB, *where)


def _attached(reading: Reading, attached: Mapping[int, float], now: float) -> Iterator[Sample]:
    times: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for usage in reading.usages:
        if usage.pod and usage.mps:
            where = (usage.namespace, usage.pod, usage.container, usage.share, usage.uuid)
            times[where] += [attached[pid] for pid in usage.pids if pid in attached]
    for container, known in times.items():
        if known:
            yield ATTACHED.of(max(0.0, now - min(known)), *container)
            yield LAST_ATTACHED.of(max(0.0, now - max(known)), *container)


def _active(activity: ContainerActivity, now: float) -> Iterator[Sample]:
    where = (*activity.where, activity.client_class)
    yield ACTIVE.of(activity.active, *where)
    yield LAUNCHES.of(activity.launches, *where)
    for protected, seconds in activity.gave_way.items():
        yield GAVE_WAY.of(seconds, *activity.where, protected)
    if activity.last_launch is not None:
        yield LAST_LAUNCH.of(max(0.0, now - activity.last_launch), *where)
    if activity.longest:
        yield LONGEST.of(activity.longest, *where)
