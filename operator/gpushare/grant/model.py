"""The grant of one container, from a GpuShare and a pod's annotations.

Of memory a grant has two amounts: what is reserved, and a limit that may be above it (burst).

Guarantees: a grant never exceeds the share's ceiling, is in whole percent and whole MiB, and leaves each process room
for its CUDA context where an annotation sets it. A pod without annotations is never refused here: the webhook checks
the share's own defaults when the share is written.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpushare.api.client_class import ClientClass
from gpushare.api.gpushare import GpuShare
from gpushare.api.names import (
    ANNOTATION_MEMORY,
    ANNOTATION_MEMORY_LIMIT,
    ANNOTATION_THREADS,
    CAPACITY_MEMORY_BURST,
    container_annotation,
    device_class,
)
from gpushare.api.quantity import MIB, format_mib, parse_memory, parse_mib
from gpushare.grant.classes import granted_class
from gpushare.grant.refused import GrantRefused
from gpushare.messages.wording import count_of

_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")

# (thread percentage, MiB that a CUDA context takes under MPS); the largest value measured for each.
_CONTEXT_MIB = ((5, 60), (12, 146), (25, 218), (50, 348), (100, 520))


CONTEXTS_PER_PROCESS = 4
"""Frameworks make one, model servers one or two."""
CONTEXTS_OF_A_GPU = 48
"""What every driver takes; from 590 on it is 60."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one container may use of its GPU."""

    share: str
    threads: int
    """Percent of the GPU's SMs, for each process."""
    memory_mib: int
    """MiB reserved, for the sum of the container's processes, their contexts included."""
    processes: int
    """MPS contexts."""
    burst_mib: int = 0
    """MiB that the container may borrow above what is reserved."""
    client_class: ClientClass | None = None
    """None: its share has no classes, or had none when the pod was admitted."""
    threads_beside_protected: int = 0
    """Of best effort: percent of the GPU's SMs while a protected client is active; else 0."""

    @property
    def limit_mib(self) -> int:
        """The most that the container may use, in MiB."""
        return self.memory_mib + self.burst_mib

    @property
    def process_memory_mib(self) -> int:
        """What is reserved for each process in MiB, rounded down."""
        return self.memory_mib // self.processes

    @property
    def process_limit_mib(self) -> int:
        """The cap of each process in MiB, rounded down."""
        return self.limit_mib // self.processes


def resolve(share: GpuShare, annotations: Mapping[str, str], namespace: str, container: str = "") -> Grant:
    """The grant of a container of `share` in a pod of `namespace` with these annotations. Raises the first
    GrantRefused.

    `container`: its name. Its own annotation of an amount goes before that of the pod.
    """
    threads = granted_threads(share, annotations, container)
    memory = granted_memory_mib(share, annotations, threads, container)
    granted = granted_class(share, annotations, namespace)
    return replace(
        _grant(share, threads, memory, granted_limit_mib(share, annotations, memory, container) - memory),
        client_class=granted.client_class,
        threads_beside_protected=granted.threads_beside_protected,
    )


def default_grant(share: GpuShare) -> Grant:
    """The grant of a container whose pod has no annotations of ours. Of the classes that a pod may name the webhook
    gives one.
    """
    memory = share.memory_default_mib
    grant = _grant(share, share.clients.threads.default, memory, _default_limit_mib(share, memory) - memory)
    queued = share.queue is not None and share.classes is None
    return replace(grant, client_class=ClientClass.NORMAL) if queued else grant


def refusals(
    share: GpuShare, annotations: Mapping[str, str], namespace: str, container: str = ""
) -> list[GrantRefused]:
    """All problems of the annotations of a pod in `namespace`, so that a user sees them at once. `container`: as of
    `resolve`.
    """
    refusals_found: list[GrantRefused] = []
    threads = share.clients.threads.default
    try:
        threads = granted_threads(share, annotations, container)
    except GrantRefused as refused:
        refusals_found.append(refused)
    memory = share.memory_default_mib
    try:
        memory = granted_memory_mib(share, annotations, threads, container)
    except GrantRefused as refused:
        refusals_found.append(refused)
    try:
        granted_limit_mib(share, annotations, memory, container)
    except GrantRefused as refused:
        refusals_found.append(refused)
    try:
        granted_class(share, annotations, namespace)
    except GrantRefused as refused:
        refusals_found.append(refused)
    return refusals_found


def granted_threads(share: GpuShare, annotations: Mapping[str, str], container: str = "") -> int:
    """Whole percent, 1 to threads.max. Raises GrantRefused."""
    threads = share.clients.threads
    field, value = _asked(annotations, ANNOTATION_THREADS, container)
    if value is None:
        return threads.default
    most = threads.default if share.by_claims else threads.max
    advice = f"write a whole number from 1 to {most}"
    if not _WHOLE_NUMBER.fullmatch(value):
        raise GrantRefused(field, value, f"is not a whole percent of the GPU's SMs; {advice}")
    if int(value) < 1:
        raise GrantRefused(field, value, f"is below 1 percent; {advice}")
    if int(value) > threads.max:
        above = f"is above the {threads.max} percent that GpuShare {_quoted(share)} allows (spec.clients.threads.max)"
        raise GrantRefused(field, value, f"{above}; {advice}")
    if int(value) > most:
        above = f"is above the {most} percent that {_set_aside(share)} (spec.clients.threads.default)"
        raise GrantRefused(field, value, f"{above}; {advice}, or {_by_claim(share)}")
    return int(value)


def granted_memory_mib(share: GpuShare, annotations: Mapping[str, str], threads: int, container: str = "") -> int:
    """MiB reserved for the container, rounded down. `threads` decide the size of its contexts. Raises GrantRefused."""
    field, value = _asked(annotations, ANNOTATION_MEMORY, container)
    if value is None:
        return share.memory_default_mib
    size = _bytes(field, value)
    processes = share.clients.processes
    need = context_need_mib(threads) * processes
    if size < need * MIB:
        needed = f"is below the {format_mib(need)} that {contexts_take(processes)} at {threads} percent of the threads"
        raise GrantRefused(field, value, f"{needed}; write at least {format_mib(need)}")
    _check_upper_bound(share, field, value, size)
    return size // MIB


def granted_limit_mib(share: GpuShare, annotations: Mapping[str, str], memory_mib: int, container: str = "") -> int:
    """MiB that the container may use at most, rounded down; `memory_mib` of them are reserved. Raises GrantRefused."""
    field, value = _asked(annotations, ANNOTATION_MEMORY_LIMIT, container)
    if value is None:
        return _default_limit_mib(share, memory_mib)
    size, reserved = _bytes(field, value), format_mib(memory_mib)
    if size < memory_mib * MIB:
        raise GrantRefused(field, value, f"is below the {reserved} that are reserved for it; write at least {reserved}")
    if size == memory_mib * MIB:
        return memory_mib
    if share.by_claims:
        above = f"is above the {reserved} that {_set_aside(share)} (spec.clients.memory.default)"
        ask = f'borrow by a ResourceClaim of DeviceClass "{device_class(share.name)}" ({CAPACITY_MEMORY_BURST})'
        raise GrantRefused(field, value, f"{above}; {ask}")
    if share.limits_memory is None:
        above = (
            f"is above the {reserved} that are reserved, and GpuShare {_quoted(share)} lets nobody borrow"
            " (spec.clients.memory.limits)"
        )
        raise GrantRefused(field, value, f"{above}; remove the annotation")
    most = share.memory_limit_max_mib
    if size > most * MIB:
        above = f"is above the {format_mib(most)} that GpuShare {_quoted(share)} allows"
        raise GrantRefused(field, value, f"{above} (spec.clients.memory.limits.max); write at most {format_mib(most)}")
    return size // MIB


def context_need_mib(threads: int) -> int:
    """MiB that a process' CUDA context takes at most at `threads` percent; linear between measurements."""
    lower = _CONTEXT_MIB[0]
    if threads <= lower[0]:
        return lower[1]
    for upper in _CONTEXT_MIB[1:]:
        if threads <= upper[0]:
            rise = (upper[1] - lower[1]) * (threads - lower[0])
            return lower[1] - (-rise // (upper[0] - lower[0]))
        lower = upper
    return lower[1]


def most_contexts(processes: int, per_gpu: int) -> int:
    """How many CUDA contexts the processes of a container may have together, of those that a GPU takes.

    CONTEXTS_PER_PROCESS for each process, as long as each other one of the share's clients has room for its own
    processes' first contexts.
    """
    return max(processes, min(CONTEXTS_PER_PROCESS * processes, CONTEXTS_OF_A_GPU - (per_gpu - 1) * processes))


def contexts_take(processes: int) -> str:
    """A phrase such as `one CUDA context takes` or `3 CUDA contexts take`."""
    return "one CUDA context takes" if processes == 1 else f"{count_of(processes, 'CUDA context')} take"


def _asked(annotations: Mapping[str, str], annotation: str, container: str) -> tuple[str, str | None]:
    """(the field as a user names it, its value or None); the container's own annotation goes before the pod's."""
    own = container_annotation(annotation, container)
    name = own if container and own in annotations else annotation
    return f"metadata.annotations[{name}]", annotations.get(name)


def _check_upper_bound(share: GpuShare, field: str, value: str, size: int) -> None:
    memory = share.clients.memory
    if share.by_claims and size > share.memory_default_mib * MIB:
        default = format_mib(share.memory_default_mib)
        above = f"is above the {default} that {_set_aside(share)} (spec.clients.memory.default)"
        raise GrantRefused(field, value, f"{above}; write at most {default}, or {_by_claim(share)}")
    if size > share.memory_max_mib * MIB:
        most = format_mib(share.memory_max_mib if memory.overcommit else share.memory_default_mib)
        above = (
            f"is above the {format_mib(share.memory_max_mib)} that GpuShare {_quoted(share)} allows"
            " (spec.clients.memory.max)"
        )
        raise GrantRefused(field, value, f"{above}; write at most {most}")
    if size > share.memory_default_mib * MIB and not memory.overcommit:
        default = format_mib(share.memory_default_mib)
        above = (
            f"is above the {default} that GpuShare {_quoted(share)} sets aside for each client"
            " (spec.clients.memory.default) and it does not allow over-commit (spec.clients.memory.overcommit)"
        )
        raise GrantRefused(field, value, f"{above}; write at most {default}")


def _bytes(field: str, value: str) -> int:
    try:
        return parse_memory(value)
    except ValueError as error:
        text = str(error).removeprefix(repr(value)).lstrip()
        raise GrantRefused(field, value, text) from None


def _default_limit_mib(share: GpuShare, memory_mib: int) -> int:
    """The limit of a pod that asks for none; of a claim it is what the claim says."""
    limits = share.limits_memory
    if limits is None or limits.default is None or share.by_claims:
        return memory_mib
    return max(memory_mib, parse_mib(limits.default))


def _set_aside(share: GpuShare) -> str:
    """What is set aside of a share delivered by claims, where the scheduler's own claim for a slot has no
    capacities."""
    return f"the scheduler sets aside for a slot of GpuShare {_quoted(share)}"


def _by_claim(share: GpuShare) -> str:
    return f'ask for more by a ResourceClaim of DeviceClass "{device_class(share.name)}"'


def _grant(share: GpuShare, threads: int, memory_mib: int, burst_mib: int) -> Grant:
    clients = share.clients
    return Grant(
        share=share.name,
        threads=threads,
        memory_mib=memory_mib,
        processes=clients.processes,
        burst_mib=burst_mib,
    )


def _quoted(share: GpuShare) -> str:
    return f'"{share.name}"'
