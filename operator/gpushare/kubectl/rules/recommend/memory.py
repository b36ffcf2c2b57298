"""Memory that is granted by default and that no client was seen with. Pure.

Guarantees: a recommended default is above the most that any container with the present default was seen with, and
admits every amount that a container was granted in the history.
"""

import math
from collections.abc import Sequence
from typing import Any

from gpushare.api.gpushare import GpuShare
from gpushare.api.quantity import format_mib
from gpushare.grant.model import context_need_mib
from gpushare.kubectl.rules.recommend.advice import Advice, AdviceKind, client_patch
from gpushare.kubectl.rules.recommend.history import ContainerPast, HistorySource, ShareHistory
from gpushare.kubectl.rules.recommend.sureness import length, sureness_of, too_short
from gpushare.kubectl.rules.trial.apply import MEMORY_STEP_MIB, memory_for
from gpushare.messages.wording import count_of

WORTH = 0.1
"""Part of the default below which less memory is not worth a change."""
WATCH_STEP = 0.25
"""Part of the default that a watch takes away at most: pods that were not there may ask for what is left."""
FULL = 0.9
"""Part of a grant from which on a container may have taken all it found."""


def smaller_default(history: ShareHistory) -> tuple[list[Advice], list[str]]:
    """(advice, notes)."""
    share = history.share
    if short := too_short(history, history.defaults, f"memory.default {format_mib(share.memory_default_mib)}"):
        return [], [short]
    seen, holders = history.defaults, with_default(history)
    wanted = enough_memory(history)
    if seen is None or wanted is None:
        return [], []
    default = share.memory_default_mib
    if default - wanted < max(MEMORY_STEP_MIB, WORTH * default):
        return [], _full_grants(holders)
    most = max(holders, key=lambda holder: holder.memory_most)
    p95 = max(holder.memory_p95 for holder in holders)
    saved = (default - wanted) * share.clients.per_gpu
    why = (
        f"none of {count_of(len(holders), 'container')} with the default was seen with more than "
        f"{format_mib(most.memory_most)} ({most.namespace}/{most.pod}; 95th percentile at most {format_mib(p95)}) in "
        f"{length(history, seen)}; {_bound(history, holders, wanted)}, and {format_mib(saved)} of each GPU become "
        "free to grant"
    )
    return [
        Advice(
            AdviceKind.MEMORY,
            share.name,
            share.name,
            f"memory.default {format_mib(default)}",
            f"memory.default {format_mib(wanted)}",
            why,
            sureness_of(history, seen),
            {
                "grantedMiB": default,
                "mostUsedMiB": most.memory_most,
                "p95UsedMiB": p95,
                "recommendedMiB": wanted,
                "containers": len(holders),
                "samples": seen.samples,
                "since": seen.since,
            },
            client_patch(memory=memory_patch(share, wanted)),
        )
    ], []


def with_default(history: ShareHistory) -> list[ContainerPast]:
    """Containers that say how much the default must be. One that has more, from before a change, is among them."""
    default, above = history.share.memory_default_mib, not _may_ask_for_more(history.share)
    return [
        container
        for container in history.containers
        if container.granted == default or (above and container.granted is not None and container.granted > default)
    ]


def enough_memory(history: ShareHistory) -> int | None:
    """MiB that would have been enough as the default; None where nobody had the default."""
    holders, share = with_default(history), history.share
    if not holders:
        return None
    wanted = max(
        memory_for(max(container.memory_most for container in holders)), least_memory(share, share.clients.threads.max)
    )
    if history.source is HistorySource.WATCH:
        wanted = max(wanted, _in_steps(math.ceil(share.memory_default_mib * (1 - WATCH_STEP))))
    # Nobody may ask for more than the default, so that it must not fall below what is asked for.
    asked = () if _may_ask_for_more(share) else _below_default(history)
    return max([wanted, *(container.granted or 0 for container in asked)])


def _below_default(history: ShareHistory) -> list[ContainerPast]:
    """The containers that asked for less than the default."""
    default = history.share.memory_default_mib
    return [container for container in history.containers if container.granted and container.granted < default]


def _bound(history: ShareHistory, holders: Sequence[ContainerPast], wanted: int) -> str:
    """Why it should be `wanted`, and not less."""
    share = history.share
    if wanted == memory_for(max(holder.memory_most for holder in holders)):
        return "a tenth more is enough"
    if wanted == least_memory(share, share.clients.threads.max):
        return f"{format_mib(wanted)} is what CUDA contexts at threads.max {share.clients.threads.max}% need"
    asking = [container for container in _below_default(history) if container.granted == wanted]
    if asking:
        return f"{asking[0].namespace}/{asking[0].pod} asks for {format_mib(wanted)}, and nobody may ask for more"
    return f"a watch lowers it by {WATCH_STEP:.0%} at most, since it sees no peak of another hour"


def least_memory(share: GpuShare, threads: int) -> int:
    """MiB for the CUDA contexts of a client at so many percent of the threads, in whole steps. Admission refuses a
    default below that of `threads.max`.
    """
    contexts = context_need_mib(threads) * share.clients.processes
    return _in_steps(contexts)


def _in_steps(mib: int) -> int:
    return -(-mib // MEMORY_STEP_MIB) * MEMORY_STEP_MIB


def memory_patch(share: GpuShare, mib: int) -> dict[str, Any]:
    """A patch of `spec.clients.memory`. Where pods may ask for more than the default, they may go on doing so."""
    memory = share.clients.memory
    keeps = memory.max is None and _may_ask_for_more(share)
    return {"default": format_mib(mib)} | ({"max": memory.default} if keeps else {})


def _may_ask_for_more(share: GpuShare) -> bool:
    """Tells whether a client may be granted more than the default (`gpushare.grant.model`)."""
    return share.by_claims or share.clients.memory.overcommit


def _full_grants(holders: Sequence[ContainerPast]) -> list[str]:
    full = [holder for holder in holders if holder.granted and holder.memory_most >= FULL * holder.granted]
    if not full:
        return []
    return [
        f"{len(full)} of {count_of(len(holders), 'container')} had {FULL:.0%} of the memory granted or more, such as "
        f"{full[0].namespace}/{full[0].pod}: no figure says whether that is needed, since some programs take all "
        "memory that they find (docs/frameworks.md)"
    ]
