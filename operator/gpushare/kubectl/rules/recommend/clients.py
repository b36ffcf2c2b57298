"""How many clients a GPU should have: slots that were short, or that nobody ever held; and threads out of reach. Pure.

Guarantees: after its patch, and after it with any other patch of the same share, each GPU of the share still fits:
memory without over-commit, and MPS contexts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.api.gpushare import CONTEXT_RESERVE_MIB, HIGHEST_CLIENT_CEILING
from gpushare.api.quantity import format_mib
from gpushare.kubectl.rules.recommend.advice import Advice, AdviceKind, client_patch
from gpushare.kubectl.rules.recommend.history import GpuPast, HistorySource, Observed, ShareHistory
from gpushare.kubectl.rules.recommend.memory import enough_memory, memory_patch, with_default
from gpushare.kubectl.rules.recommend.sureness import at_most_medium, duration, length, sureness_of, too_short
from gpushare.kubectl.rules.trial.apply import HEADROOM, memory_for
from gpushare.kubectl.rules.trial.decision import RULE
from gpushare.messages.wording import are, count_of

OFTEN_FULL = 0.05
"""Part of the samples with no free slot, from which on slots are short."""
BUSY = 0.8
"""The 95th percentile of the utilisation that more clients may bring a GPU to, were none of them to overlap."""
LARGEST_STEP = 2
"""One change gives at most so many times the clients."""
LEAST_PART = 0.01
"""A smaller part of a GPU is not told from nothing, and nothing is divided by it."""


def other_number(history: ShareHistory) -> tuple[list[Advice], list[str]]:
    """(advice, notes): at most one advice, since a share cannot need more and fewer."""
    share = history.share
    if share.by_claims:
        return [], ["its clients come by ResourceClaims of different sizes: perGpu is not judged"]
    if share.queue is not None:
        return [], [
            "who holds a slot may only wait (clients.queue), so held slots say nothing of perGpu: look at its waits"
        ]
    if short := too_short(history, history.clients, f"perGpu {share.clients.per_gpu}"):
        return [], [short]
    seen, gpus = history.clients, [gpu for gpu in history.gpus if gpu.samples]
    if seen is None or not gpus:
        return [], []
    if advice := _too_much_memory(history, seen, gpus):
        return [advice], []
    if is_often_full(history):
        return _more(history, seen, gpus)
    return _never_held(history, seen, gpus)


def is_often_full(history: ShareHistory) -> bool:
    """Tells whether slots were short."""
    return history.clients is not None and history.full >= OFTEN_FULL * history.clients.samples


def room_for(history: ShareHistory, gpus: Sequence[GpuPast], memory_mib: int) -> int:
    """The clients that each GPU could have with so much memory reserved for each; 0: not known, since nothing says how
    busy the GPUs were.
    """
    room = _room(history, gpus, memory_mib)
    return room.wanted if room else 0


def idle_threads(history: ShareHistory, more: bool) -> list[Advice]:
    """Threads that no client could use, since all caps together never reached the GPU. `more`: clients are to be."""
    share, seen = history.share, history.clients
    threads = share.clients.threads
    most = [gpu.threads_most for gpu in history.gpus if gpu.samples and gpu.threads_most is not None]
    if (
        more
        or share.by_claims
        or seen is None
        or history.source is HistorySource.WATCH
        or too_short(history, seen, "threads")
        or not max(most, default=0.0)
    ):
        return []
    together = max(most)
    wanted = min(100, math.floor(threads.default / (max(together, LEAST_PART) * HEADROOM)))
    if wanted < threads.default * HEADROOM + 1:
        return []
    why = (
        f"the threads of all clients of a GPU together never came to more than {together:.0%} of its SMs in "
        f"{length(history, seen)}, so the rest was out of everybody's reach; "
        f"with {wanted}% each they would come to {together * wanted / threads.default:.0%}"
    )
    patch = {"default": wanted} | ({"max": wanted} if wanted > threads.max else {})
    return [
        Advice(
            AdviceKind.THREADS,
            share.name,
            share.name,
            f"threads.default {threads.default}",
            f"threads.default {wanted}",
            why,
            at_most_medium(sureness_of(history, seen)),
            {"mostTogetherPercent": round(together * 100, 1), "samples": seen.samples, "since": seen.since},
            client_patch(threads=patch),
        )
    ]


def _more(history: ShareHistory, seen: Observed, gpus: Sequence[GpuPast]) -> tuple[list[Advice], list[str]]:
    share, part = history.share, history.full / seen.samples
    clients = share.clients
    often = f"every slot was held {part:.0%} of the time"
    memory = share.memory_default_mib
    if not too_short(history, history.defaults, "memory.default"):
        memory = min(memory, enough_memory(history) or memory)
    room = _room(history, gpus, memory)
    if room is None:
        return [], [f"{often}, but nothing says how busy its GPUs were then: more clients are not recommended"]
    wanted, busy, least = room.wanted, room.busy, min(gpu.memory_mib for gpu in history.gpus)
    if wanted <= clients.per_gpu:
        return [], [f"{often}, but {_no_room(room, memory, clients.per_gpu)}"]
    change, patch = f"perGpu {wanted}", client_patch(perGpu=wanted)
    if not clients.memory.overcommit and wanted * share.memory_default_mib + CONTEXT_RESERVE_MIB > least:
        # The patch must fit by itself: a share whose clients' memory does not fit gives its GPUs up.
        change += f", memory.default {format_mib(memory)}"
        patch = client_patch(perGpu=wanted, memory=memory_patch(share, memory))
    why = (
        f"{often} in {length(history, seen)}, and its GPUs were busy {busy:.0%} of the time then (95th "
        f"percentile): {count_of(wanted, 'client')} bring that to {wanted / clients.per_gpu * busy:.0%} at most; go "
        f"on if a trial says so: {RULE}"
    )
    return [
        Advice(
            AdviceKind.MORE_CLIENTS,
            share.name,
            share.name,
            f"perGpu {clients.per_gpu}",
            change,
            why,
            at_most_medium(sureness_of(history, seen)),
            {
                "fullPercent": round(part * 100, 1),
                "p95BusyPercentWhenFull": round(busy * 100, 1),
                "clientsByMemory": room.by_memory,
                "clientsByContexts": room.by_contexts,
                "samples": seen.samples,
                "since": seen.since,
            },
            patch,
        )
    ], []


@dataclass(frozen=True, slots=True)
class _Room:
    """How many clients a GPU has room for. `busy`: the 95th percentile of its utilisation while it was full."""

    by_memory: int
    by_limits: int
    by_contexts: int
    by_time: int
    most: int
    busy: float

    @property
    def wanted(self) -> int:
        return min(self.by_memory, self.by_limits, self.by_contexts, self.by_time, self.most)


def _room(history: ShareHistory, gpus: Sequence[GpuPast], memory_mib: int) -> _Room | None:
    """The room for more clients; None: nothing says how busy the GPUs were when they were full."""
    share, busy = history.share, [gpu.busy_when_full for gpu in gpus if gpu.busy_when_full is not None]
    if not busy:
        return None
    least = min(gpu.memory_mib for gpu in history.gpus)
    per_gpu, by_memory, limits = share.clients.per_gpu, (least - CONTEXT_RESERVE_MIB) // memory_mib, share.limits_memory
    lent = limits.overcommit_percent * least // 100 - CONTEXT_RESERVE_MIB if limits else 0
    return _Room(
        by_memory,
        lent // share.memory_limit_max_mib if limits else by_memory,
        min(HIGHEST_CLIENT_CEILING, *(gpu.client_ceiling for gpu in history.gpus)) // share.clients.processes,
        math.floor(per_gpu * BUSY / max(*busy, LEAST_PART)),
        LARGEST_STEP * per_gpu,
        max(busy),
    )


def _no_room(room: _Room, memory: int, now: int) -> str:
    if room.by_memory <= now:
        return f"the memory of a GPU is enough for {count_of(room.by_memory, 'client')} of {format_mib(memory)}"
    if room.by_limits <= now:
        return f"together the limits of {count_of(room.by_limits, 'client')} reach memory.limits.overcommitPercent"
    if room.by_contexts <= now:
        return f"the driver takes {count_of(room.by_contexts, 'such client')} on a GPU"
    return (
        f"its GPUs were busy {room.busy:.0%} of the time then (95th percentile): whether more clients would gain, no "
        "metric says; measure with `kubectl gpushare trial`"
    )


def _never_held(history: ShareHistory, seen: Observed, gpus: Sequence[GpuPast]) -> tuple[list[Advice], list[str]]:
    share, now = history.share, history.share.clients.per_gpu
    most = max(gpu.held_most for gpu in gpus)
    if not most:
        return [], [f"no slot of it was held in {length(history, seen)}: does anybody need this share?"]
    wanted = math.ceil(most * HEADROOM)
    if wanted >= now:
        return [], [note] if (note := _fewer_gpus(history)) else []
    if history.source is HistorySource.WATCH:
        long = duration(history.end - seen.since)
        held = f"at most {most} of its {count_of(now, 'slot')} held in {long}"
        return [], [f"a GPU had {held}; that says nothing of other days"]
    each = (min(gpu.memory_mib for gpu in history.gpus) - CONTEXT_RESERVE_MIB) // wanted
    why = (
        f"no GPU had more than {most} of its {count_of(now, 'slot')} held in {length(history, seen)}; with {wanted} "
        f"there is up to {format_mib(each)} for each client"
    )
    if note := _fewer_gpus(history):
        why += f"; {note}"
    return [
        Advice(
            AdviceKind.FEWER_CLIENTS,
            share.name,
            share.name,
            f"perGpu {now}",
            f"perGpu {wanted}",
            why,
            sureness_of(history, seen),
            {
                "mostHeld": most,
                "mostHeldTogether": history.held_together,
                "slots": now,
                "gpus": len(gpus),
                "samples": seen.samples,
                "since": seen.since,
            },
            client_patch(perGpu=wanted),
        )
    ], []


def _fewer_gpus(history: ShareHistory) -> str:
    """A sentence where all slots that were held at one time fit on fewer GPUs; else empty."""
    owned, per_gpu = len(history.gpus), history.share.clients.per_gpu
    needed = math.ceil(history.held_together * HEADROOM / per_gpu)
    if not 0 < needed < owned or history.source is HistorySource.WATCH:
        return ""
    return (
        f"all its GPUs together had at most {history.held_together} held, for which {needed} of "
        f"{count_of(owned, 'GPU')} with {count_of(per_gpu, 'slot')} {are(needed)} enough"
    )


def _too_much_memory(history: ShareHistory, seen: Observed, gpus: Sequence[GpuPast]) -> Advice | None:
    """Advice of over-commit: fewer clients where those of one GPU together came near to its memory."""
    share, now = history.share, history.share.clients.per_gpu
    known = [(gpu, gpu.memory_most) for gpu in gpus if gpu.memory_most is not None]
    holders = with_default(history)
    if not share.clients.memory.overcommit or not known or not holders:
        return None
    fullest, most = max(known, key=lambda gpu_use: gpu_use[1] / (gpu_use[0].memory_mib or math.inf))
    usable = fullest.memory_mib - CONTEXT_RESERVE_MIB
    each = memory_for(max(holder.memory_most for holder in holders))
    wanted = max(1, usable // each)
    if most * HEADROOM <= usable or wanted >= now:
        return None
    why = (
        f"the clients of one GPU together were seen with {format_mib(most)} of its {format_mib(fullest.memory_mib)} in "
        f"{length(history, seen)}: {now} may fail to allocate within their grants; {wanted} of {format_mib(each)}, a "
        "tenth more than the most that one was seen with, fit"
    )
    return Advice(
        AdviceKind.FEWER_CLIENTS,
        share.name,
        share.name,
        f"perGpu {now}",
        f"perGpu {wanted}",
        why,
        sureness_of(history, seen),
        {"mostTogetherMiB": most, "gpuMiB": fullest.memory_mib, "samples": seen.samples, "since": seen.since},
        client_patch(perGpu=wanted),
    )
