"""More clients where slots are short and there is room; fewer where slots were never held; threads that were idle."""

from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.rules.recommend.advice import AdviceKind
from gpushare.kubectl.rules.recommend.clients import idle_threads, other_number
from gpushare.kubectl.rules.recommend.history import GpuPast, HistorySource
from gpushare.kubectl.rules.recommend.sureness import Sureness
from tests.unit.kubectl.rules.recommend.made_up import container, gpu, history, seen, share

FULL = 1000
"""Samples in which a GPU was full, of 2016 in all."""


def clients_of(of: GpuShare, gpus: list[GpuPast], **more: Any) -> Any:
    advice, _ = other_number(history(of, gpus=gpus, **more))
    return advice[0].patch["spec"]["clients"] if advice and advice[0].patch else None


@pytest.mark.parametrize(
    ("case", "of", "gpus", "full", "clients"),
    [
        ("as many as the time allows", share(4, "4Gi"), [gpu(busy_when_full=0.6)], FULL, {"perGpu": 5}),
        ("at most twice as many", share(4, "4Gi"), [gpu(busy_when_full=0.01)], FULL, {"perGpu": 8}),
        ("a GPU that did nothing has time", share(4, "4Gi"), [gpu(busy_when_full=0.0)], FULL, {"perGpu": 8}),
        ("as many as there is memory for", share(4, "12Gi"), [gpu(busy_when_full=0.1)], FULL, {"perGpu": 6}),
        ("the smallest GPU decides", share(4, "4Gi"),
         [gpu(busy_when_full=0.1), gpu(uuid="GPU-1", memory_mib=24_576, busy_when_full=0.1)], FULL, {"perGpu": 5}),
        ("and the busiest", share(4, "4Gi"),
         [gpu(busy_when_full=0.1), gpu(uuid="GPU-1", busy_when_full=0.6)], FULL, {"perGpu": 5}),
        ("a GPU without samples has memory too", share(4, "4Gi"),
         [gpu(busy_when_full=0.1), gpu(uuid="GPU-1", memory_mib=24_576, samples=0)], FULL, {"perGpu": 5}),
        ("as many as the driver takes", share(20, "1Gi", processes=2), [gpu(20, busy_when_full=0.1)], FULL,
         {"perGpu": 24}),
        ("none where no slot was short", share(4, "4Gi"), [gpu(busy_when_full=0.1)], 100, None),
        ("none where the GPU is busy", share(4, "4Gi"), [gpu(busy_when_full=0.95)], FULL, None),
        ("none where nothing says how busy it is", share(4, "4Gi"), [gpu()], FULL, None),
        ("none where memory is granted", share(4, "19Gi"), [gpu(busy_when_full=0.1)], FULL, None),
        ("a tenth above the slots that were held", share(16, "4Gi"), [gpu(4), gpu(9, uuid="GPU-1")], 0, {"perGpu": 10}),
        ("one", share(4, "4Gi"), [gpu(1)], 0, {"perGpu": 2}),
        ("not where all were held once", share(4, "4Gi"), [gpu(4)], 0, None),
        ("not where a tenth more is all", share(4, "4Gi"), [gpu(3)], 0, None),
        ("not where nothing was held", share(4, "4Gi"), [gpu(0)], 0, None),
        ("not of claims", share(4, "4Gi", delivery="ResourceClaim"), [gpu(1)], 0, None),
        ("not without a GPU", share(4, "4Gi"), [], 0, None),
    ],
)  # fmt: skip
def test_per_gpu_follows_what_was_held(
    case: str, of: GpuShare, gpus: list[GpuPast], full: int, clients: dict[str, Any] | None
) -> None:
    assert clients_of(of, gpus, full=full) == clients, case


def test_a_patch_for_more_clients_lowers_memory_to_fit() -> None:
    """A share whose clients do not fit gives its GPUs up, so that the patch must be whole."""
    patch = clients_of(share(4, "16Gi"), [gpu(busy_when_full=0.1)], full=FULL, containers=[container(5000)])
    assert patch == {"perGpu": 8, "memory": {"default": "5632Mi"}}


def test_memory_that_was_seen_for_too_short_a_time_makes_no_room() -> None:
    patch = clients_of(
        share(4, "16Gi"), [gpu(busy_when_full=0.1)], full=FULL, containers=[container(5000)], defaults=seen(0.5)
    )
    assert patch is None


@pytest.mark.parametrize(
    ("case", "together", "most", "clients"),
    [
        ("near the GPU's memory", 78_000, 14_000, {"perGpu": 5}),
        ("far from it", 60_000, 14_000, None),
        ("near it, and yet room for all by a tenth more", 75_000, 12_000, None),
    ],
)
def test_advice_with_overcommit_is_fewer_clients_where_memory_ends(
    case: str, together: int, most: int, clients: dict[str, Any] | None
) -> None:
    of = share(6, "16Gi", overcommit=True)
    patch = clients_of(of, [gpu(6, memory_most=together)], containers=[container(most)])
    assert patch == clients, case


def test_more_clients_says_why_and_does_not_claim_speed() -> None:
    ((advice,), _) = other_number(history(share(4, "4Gi"), gpus=[gpu(busy_when_full=0.3)], full=1008))
    assert advice.kind is AdviceKind.MORE_CLIENTS
    assert advice.sure is Sureness.MEDIUM
    assert advice.why == (
        "every slot was held 50% of the time in 7d, 2016 samples, and its GPUs were busy 30% of the time then (95th "
        "percentile): 8 clients bring that to 60% at most; go on if a trial says so: all together do at least 1.2 "
        "times "
        "the work of one, p99 is at most 2 times that alone, and the slowest has at least 50% of the mean speed"
    )


@pytest.mark.parametrize(
    ("gpus", "full", "note"),
    [
        (
            [gpu(busy_when_full=0.95)],
            FULL,
            "busy 95% of the time then (95th percentile): whether more clients would gain",
        ),
        ([gpu()], FULL, "nothing says how busy its GPUs were then"),
        ([gpu(0)], 0, "no slot of it was held in 7d, 2016 samples: does anybody need this share?"),
    ],
)
def test_where_nothing_follows_the_reason_is_told(gpus: list[GpuPast], full: int, note: str) -> None:
    advice, (told,) = other_number(history(share(4, "4Gi"), gpus=gpus, full=full))
    assert advice == []
    assert note in told


def test_whole_gpus_that_nobody_needs_are_told() -> None:
    gpus = [gpu(3, uuid=f"GPU-{number}") for number in range(4)]
    advice, (note,) = other_number(history(share(4, "4Gi"), gpus=gpus, held_together=7))
    assert advice == []
    watched = history(share(4, "4Gi"), gpus=gpus, held_together=7, source=HistorySource.WATCH, step=300.0)
    assert other_number(watched) == ([], [])
    assert note == "all its GPUs together had at most 7 held, for which 2 of 4 GPUs with 4 slots are enough"


def test_a_watch_calls_no_slot_unneeded() -> None:
    watched = history(
        share(8, "4Gi"), gpus=[gpu(1)], source=HistorySource.WATCH, step=5.0, clients=seen(120 / 86400, 60.0)
    )
    advice, (note,) = other_number(watched)
    assert advice == []
    assert note == "a GPU had at most 1 of its 8 slots held in 2m; that says nothing of other days"


def test_a_watch_calls_no_threads_unneeded() -> None:
    of, gpus = share(4, "4Gi", 25), [gpu(threads_most=0.5)]
    assert idle_threads(history(of, gpus=gpus), more=False)
    assert idle_threads(history(of, gpus=gpus, source=HistorySource.WATCH), more=False) == []


@pytest.mark.parametrize(
    ("case", "threads", "together", "more", "patch"),
    [
        ("two of 25 %", 25, 0.5, False, {"default": 45, "max": 45}),
        ("one of 25 % may have all but a tenth", 25, 0.25, False, {"default": 90, "max": 90}),
        ("never more than all", 60, 0.5, False, {"default": 100, "max": 100}),
        ("all of it was in reach", 25, 1.0, False, None),
        ("a little more is no change", 25, 0.85, False, None),
        ("more clients take it", 25, 0.5, True, None),
        ("nobody was there", 25, 0.0, False, None),
        ("nothing says", 25, None, False, None),
        ("no cap", 100, 3.0, False, None),
    ],
)
def test_threads_that_all_clients_together_never_reached(
    case: str, threads: int, together: float | None, more: bool, patch: dict[str, int] | None
) -> None:
    advices = idle_threads(history(share(4, "4Gi", threads), gpus=[gpu(threads_most=together)]), more)
    if patch is None:
        assert advices == [], case
    else:
        (advice,) = advices
        assert advice.patch == {"spec": {"clients": {"threads": patch}}}, case
        assert advice.sure is Sureness.MEDIUM


def test_with_a_queue_held_slots_say_nothing_of_the_number_of_clients() -> None:
    advice, (note,) = other_number(history(share(queue={"slots": 8}), full=2016))
    assert advice == []
    assert "may only wait (clients.queue)" in note
