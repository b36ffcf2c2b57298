"""Memory that clients need now and then: what they mostly use is reserved, and their peaks are borrowed. Pure.

Guarantees: a limit is a tenth above the most that any container with the default was seen with, or today's default
where that is less; what is reserved is enough for whatever a container asked for. Where the limits of a GPU's clients
come to more than its memory, all of them together were never seen with so much that a tenth more would not fit for the
new number, too.
"""

import math

from gpushare.api.gpushare import CONTEXT_RESERVE_MIB, MOST_OVERCOMMIT_PERCENT
from gpushare.api.quantity import format_mib, parse_mib
from gpushare.kubectl.rules.recommend.advice import Advice, AdviceKind, client_patch
from gpushare.kubectl.rules.recommend.clients import is_often_full, room_for
from gpushare.kubectl.rules.recommend.history import ContainerPast, HistorySource, ShareHistory
from gpushare.kubectl.rules.recommend.memory import WORTH, enough_memory, least_memory, with_default
from gpushare.kubectl.rules.recommend.sureness import at_most_medium, length, sureness_of, too_short
from gpushare.kubectl.rules.trial.apply import HEADROOM, MEMORY_STEP_MIB, memory_for
from gpushare.messages.wording import count_of

WIDELY = 1.5
"""A peak that is so many times what is used in 95 % of the samples is worth a limit of its own."""


def borrowing(history: ShareHistory) -> list[Advice]:
    """Gives at most one advice, in the place of one for a smaller default or for more clients."""
    share, seen = history.share, history.defaults
    memory, holders = share.clients.memory, with_default(history)
    if (
        share.by_claims
        or memory.overcommit
        or history.source is HistorySource.WATCH
        or seen is None
        or not holders
        or too_short(history, seen, "memory")
    ):
        return []
    reserved = _mostly_used(history, holders)
    return _reserve_more(history, holders, reserved) if memory.limits else _lend_peaks(history, holders, reserved)


def _lend_peaks(history: ShareHistory, holders: list[ContainerPast], reserved: int) -> list[Advice]:
    share, seen = history.share, history.defaults
    default, per_gpu = share.memory_default_mib, share.clients.per_gpu
    limit = min(enough_memory(history) or default, default)
    if seen is None or reserved * WIDELY > limit:
        return []
    wanted = _clients(history, reserved, limit)
    least = min((gpu.memory_mib for gpu in history.gpus), default=0)
    percent = max(100, -(-100 * (wanted * limit + CONTEXT_RESERVE_MIB) // least)) if wanted > per_gpu and least else 100
    if percent > MOST_OVERCOMMIT_PERCENT:
        return []
    top = max(holders, key=lambda holder: holder.memory_most)
    p95 = max(holder.memory_p95 for holder in holders)
    limits = {"max": format_mib(limit), "default": format_mib(limit)} | (
        {"overcommitPercent": percent} if percent > 100 else {}
    )
    # memory.max has no effect here, and limits.max must not be below it.
    patch = {"default": format_mib(reserved), "limits": limits} | ({"max": None} if share.clients.memory.max else {})
    change = f"memory.default {format_mib(reserved)}, memory.limits.max {format_mib(limit)}"
    why = (
        f"{count_of(len(holders), 'container')} with the default had at most {format_mib(p95)} in 95% of the samples, "
        f"and at the most {format_mib(top.memory_most)} ({top.namespace}/{top.pod}), in {length(history, seen)}: what "
        f"is mostly used is reserved, and peaks are borrowed; {_gain(history, reserved, wanted, percent)}"
    )
    if wanted > per_gpu:
        change = f"perGpu {wanted}, {change}" + (f", overcommitPercent {percent}" if percent > 100 else "")
    return [
        Advice(
            AdviceKind.BORROW,
            share.name,
            share.name,
            f"{f'perGpu {per_gpu}, ' if wanted > per_gpu else ''}memory.default {format_mib(default)}",
            change,
            why,
            at_most_medium(sureness_of(history, seen)),
            {
                "grantedMiB": default,
                "p95UsedMiB": p95,
                "mostUsedMiB": top.memory_most,
                "reservedMiB": reserved,
                "limitMiB": limit,
                "clients": wanted,
                "containers": len(holders),
                "samples": seen.samples,
                "since": seen.since,
            },
            client_patch(memory=patch, **({"perGpu": wanted} if wanted > per_gpu else {})),
        )
    ]


def _gain(history: ShareHistory, reserved: int, wanted: int, percent: int) -> str:
    share = history.share
    per_gpu = share.clients.per_gpu
    if wanted == per_gpu:
        saved = format_mib((share.memory_default_mib - reserved) * per_gpu)
        return f"{saved} of each GPU become free to grant, and their limits together still fit"
    short = "" if percent == 100 else "; if peaks meet, the GPU is short, and memory.limits.whenShort says what follows"
    return f"every slot was held {history.full / max(1, _samples(history)):.0%} of the time, and {wanted} fit{short}"


def _clients(history: ShareHistory, reserved: int, limit: int) -> int:
    """How many of them a GPU should have: more than now where slots were short and there is room."""
    now = history.share.clients.per_gpu
    gpus = [gpu for gpu in history.gpus if gpu.samples]
    if not gpus or not is_often_full(history) or too_short(history, history.clients, "perGpu"):
        return now
    surely = room_for(history, gpus, limit)
    together = [
        (gpu.memory_mib - CONTEXT_RESERVE_MIB) * now / (max(1, gpu.memory_most) * HEADROOM)
        for gpu in gpus
        if gpu.memory_most is not None
    ]
    borrowed = min(room_for(history, gpus, reserved), math.floor(min(together))) if len(together) == len(gpus) else 0
    return max(now, surely, borrowed)


def _reserve_more(history: ShareHistory, holders: list[ContainerPast], reserved: int) -> list[Advice]:
    """Advice for a share that lends: more is to be reserved where it is borrowed nearly all the time, and never
    sure."""
    share, seen, limits = history.share, history.defaults, history.share.limits_memory
    default, per_gpu = share.memory_default_mib, share.clients.per_gpu
    least = min((gpu.memory_mib for gpu in history.gpus), default=0)
    if (
        seen is None
        or limits is None
        or reserved - default < max(MEMORY_STEP_MIB, WORTH * default)
        or reserved > share.memory_limit_max_mib
        or per_gpu * reserved + CONTEXT_RESERVE_MIB > least
    ):
        return []
    most = max(holders, key=lambda holder: holder.memory_p95)
    patch: dict[str, object] = {"default": format_mib(reserved)}
    if limits.default is not None and parse_mib(limits.default) < reserved:
        patch["limits"] = {"default": format_mib(reserved)}
    if share.clients.memory.max:
        patch["max"] = None  # without effect here, and memory.default must not exceed it
    return [
        Advice(
            AdviceKind.RESERVE,
            share.name,
            share.name,
            f"memory.default {format_mib(default)}",
            f"memory.default {format_mib(reserved)}",
            f"{most.namespace}/{most.pod} had more than {format_mib(default)}, which is reserved, nearly always (95th "
            f"percentile {format_mib(most.memory_p95)}) in {length(history, seen)}: what is borrowed can be taken "
            f"back; each GPU has room for {count_of(per_gpu, 'client')} with so much reserved",
            sureness_of(history, seen),
            {
                "reservedMiB": reserved,
                "p95UsedMiB": most.memory_p95,
                "mostUsedMiB": max(holder.memory_most for holder in holders),
                "containers": len(holders),
                "samples": seen.samples,
                "since": seen.since,
            },
            client_patch(memory=patch),
        )
    ]


def _mostly_used(history: ShareHistory, holders: list[ContainerPast]) -> int:
    """MiB to reserve: a tenth above what each had in 95 % of the samples, and at least room for its CUDA contexts."""
    share = history.share
    asked = [
        container.granted
        for container in history.containers
        if container.granted and container.granted < share.memory_default_mib
    ]
    mostly = memory_for(max(container.memory_p95 for container in holders))
    return max([mostly, least_memory(share, threads=100), *asked])


def _samples(history: ShareHistory) -> int:
    return history.clients.samples if history.clients else 0
