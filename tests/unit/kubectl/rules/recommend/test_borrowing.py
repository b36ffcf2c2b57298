"""What is mostly used is reserved, and peaks are borrowed, where that gains something and nobody falls short of it."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.rules.recommend.advice import AdviceKind, patched
from gpushare.kubectl.rules.recommend.borrowing import borrowing
from gpushare.kubectl.rules.recommend.history import ContainerPast, GpuPast, HistorySource
from gpushare.kubectl.rules.recommend.rules import recommend
from gpushare.kubectl.rules.recommend.sureness import Sureness
from tests.unit.kubectl.rules.recommend.made_up import container, gpu, history, seen, share

LENDS = {"limits": {"max": "20Gi", "default": "20Gi"}}
PEAKS = [container(15_000, pod="peak", memory_p95=4000), container(3000, pod="even", memory_p95=2900)]
FULL = gpu(full=1000, busy_when_full=0.3, memory_most=30_000)


def memory_of(of: GpuShare, *containers: ContainerPast, **more: Any) -> Any:
    advice = borrowing(history(of, containers=containers, **more))
    return advice[0].patch["spec"]["clients"] if advice and advice[0].patch else None


@pytest.mark.parametrize(
    ("case", "of", "containers", "patch"),
    [
        ("peaks become limits, what is mostly used is reserved", share(), PEAKS,
         {"memory": {"default": "4608Mi", "limits": {"max": "16Gi", "default": "16Gi"}}}),
        ("never below what a pod asks for", share(), [*PEAKS, container(900, 8192, "own")],
         {"memory": {"default": "8Gi", "limits": {"max": "16Gi", "default": "16Gi"}}}),
        ("a ceiling without effect goes, since limits.max may not be below it", share(max="32Gi"), PEAKS,
         {"memory": {"default": "4608Mi", "limits": {"max": "16Gi", "default": "16Gi"}, "max": None}}),
        ("at least room for a context", share(), [container(9000, memory_p95=10)],
         {"memory": {"default": "768Mi", "limits": {"max": "9984Mi", "default": "9984Mi"}}}),
        ("nothing, where all that is used is used always", share(), [container(9000)], None),
        ("nothing, where nobody was seen", share(), [], None),
        ("nothing, where no grant is known", share(), [container(9000, None, memory_p95=10)], None),
        ("nothing with over-commit, where nothing is reserved", share(overcommit=True), PEAKS, None),
        ("nothing for claims, which say themselves what they borrow", share(delivery="ResourceClaim"), PEAKS, None),
        ("of a share that lends, more is reserved where it is borrowed nearly always", share(memory="8Gi", **LENDS),
         [container(15_000, 8192, memory_p95=12_000)], {"memory": {"default": "13Gi"}}),
        ("and what is lent by default is no less", share(memory="8Gi", limits={"max": "20Gi", "default": "9Gi"}),
         [container(15_000, 8192, memory_p95=12_000)],
         {"memory": {"default": "13Gi", "limits": {"default": "13Gi"}}}),
        ("nothing, where only peaks are borrowed", share(memory="8Gi", **LENDS),
         [container(15_000, 8192, memory_p95=7000)], None),
        ("nothing, where it would not fit on the GPU", share(8, "8Gi", **LENDS),
         [container(15_000, 8192, memory_p95=12_000)], None),
        ("nothing beyond the share's limit", share(memory="8Gi", limits={"max": "9Gi"}),
         [container(9000, 8192, memory_p95=9000)], None),
    ],
)  # fmt: skip
def test_what_is_mostly_used_is_reserved_and_peaks_are_borrowed(
    case: str, of: GpuShare, containers: list[ContainerPast], patch: Any
) -> None:
    assert memory_of(of, *containers) == patch, case


@pytest.mark.parametrize(
    ("case", "gpus", "clients", "percent"),
    [
        ("as many as what is reserved has room for, twice as many at the most", [FULL], 8, 162),
        ("no more than what all together were seen with allows", [replace(FULL, memory_most=50_000)],
         5, 102),
        ("none where nothing says what all together had", [replace(FULL, memory_most=None)], None, None),
        ("none where the GPUs were busy", [replace(FULL, busy_when_full=0.9)], None, None),
        ("none where nothing says how busy they were", [replace(FULL, busy_when_full=None)], None, None),
    ],
)  # fmt: skip
def test_more_clients_where_slots_were_short(case: str, gpus: list[GpuPast], clients: int | None, percent: Any) -> None:
    past = history(containers=PEAKS, gpus=gpus, full=1000)
    (advice,) = borrowing(past)
    patch = advice.patch or {}
    assert patch["spec"]["clients"].get("perGpu") == clients, case
    assert patch["spec"]["clients"]["memory"]["limits"].get("overcommitPercent") == percent
    assert ("if peaks meet" in advice.why) == (percent is not None)


def test_where_slots_were_never_short_the_number_of_clients_stays() -> None:
    assert "perGpu" not in memory_of(share(), *PEAKS, gpus=[FULL], full=0)


def test_it_takes_the_place_of_a_smaller_default_and_of_more_clients() -> None:
    recommended = recommend(history(containers=PEAKS, gpus=[FULL], full=1000))
    assert [advice.kind for advice in recommended.advice] == [AdviceKind.BORROW]
    assert not any("slot" in note for note in recommended.notes)
    even = recommend(history(containers=[container(3000)], gpus=[FULL], full=1000))
    assert [advice.kind for advice in even.advice] == [AdviceKind.MEMORY, AdviceKind.MORE_CLIENTS]


def test_the_figures_say_who_had_the_peak_and_it_is_never_quite_sure() -> None:
    (advice,) = borrowing(history(containers=PEAKS, defaults=seen(7)))
    assert "2 containers with the default had at most 4000Mi in 95% of the samples" in advice.why
    assert "at the most 15000Mi (ml/peak), in 7d, 2016 samples" in advice.why
    assert advice.sure is Sureness.MEDIUM
    assert (advice.figures["reservedMiB"], advice.figures["limitMiB"]) == (4608, 16384)
    after = patched(share(), advice.patch or {})
    assert after.limits_memory is not None
    assert after.memory_limit_max_mib >= 15_000


@pytest.mark.parametrize("more", [{"source": HistorySource.WATCH}, {"defaults": seen(0.5)}, {"defaults": None}])
def test_a_short_history_recommends_nothing(more: dict[str, Any]) -> None:
    assert memory_of(share(), *PEAKS, **more) is None


def test_more_clients_of_a_share_that_lends_keep_within_its_overcommit() -> None:
    lends = share(memory="2Gi", limits={"max": "16Gi", "overcommitPercent": 105})
    past = history(lends, containers=[container(1800, 2048)], gpus=[FULL], full=1000)
    (advice,) = (item for item in recommend(past).advice if item.kind is AdviceKind.MORE_CLIENTS)
    assert advice.patch == {"spec": {"clients": {"perGpu": 5}}}
    tight = share(memory="2Gi", limits={"max": "20000Mi"})
    recommended = recommend(history(tight, containers=[container(1800, 2048)], gpus=[FULL], full=1000))
    assert "the limits of 4 clients reach memory.limits.overcommitPercent" in " ".join(recommended.notes)


def test_advice_raises_memory_or_clients_but_not_both() -> None:
    lends = share(memory="8Gi", limits={"max": "20Gi", "overcommitPercent": 300})
    even = recommend(history(lends, containers=[container(7000, 8192)], gpus=[FULL], full=1000))
    assert [advice.kind for advice in even.advice] == [AdviceKind.MORE_CLIENTS]
    past = history(lends, containers=[container(15_000, 8192, memory_p95=12_000)], gpus=[FULL], full=1000)
    assert [advice.kind for advice in recommend(past).advice] == [AdviceKind.RESERVE]
