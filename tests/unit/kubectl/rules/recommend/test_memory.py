"""A default that nobody needed is lowered to a tenth above the most seen, and never below what is asked for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.rules.recommend.advice import patched
from gpushare.kubectl.rules.recommend.history import ContainerPast, HistorySource
from gpushare.kubectl.rules.recommend.memory import smaller_default
from gpushare.kubectl.rules.recommend.sureness import Sureness
from tests.unit.kubectl.rules.recommend.made_up import container, history, seen, share


def patch_of(of: GpuShare, *containers: ContainerPast) -> Any:
    advice, _ = smaller_default(history(of, containers=containers))
    return advice[0].patch["spec"]["clients"]["memory"] if advice and advice[0].patch else None


@pytest.mark.parametrize(
    ("case", "of", "containers", "memory"),
    [
        ("a tenth above the most seen, in steps of 256 MiB", share(), [container(5000), container(900)], "5632Mi"),
        ("at least what a context needs with all threads", share(), [container(100)], "768Mi"),
        ("nothing, where it would save less than a tenth", share(), [container(13_800)], None),
        ("nothing, where all of it was used", share(), [container(16_384)], None),
        ("nothing, where nobody was seen", share(), [], None),
        ("nothing, where no grant is known", share(), [container(5000, None)], None),
        ("not below what a pod asks for", share(), [container(900), container(500, 8192, "own")], "8Gi"),
        ("a grant from before a change counts", share(), [container(12_000, 32_768), container(1)], "13Gi"),
        ("with over-commit, pods may go on asking for more", share(overcommit=True), [container(900)],
         {"default": "1Gi", "max": "16Gi"}),
        ("a ceiling that is written stays", share(overcommit=True, max="32Gi"),
         [container(900), container(30_000, 32_768)], {"default": "1Gi"}),
        ("claims may ask for more", share(delivery="ResourceClaim"), [container(900)],
         {"default": "1Gi", "max": "16Gi"}),
    ],
)  # fmt: skip
def test_the_default_is_what_the_containers_need(
    case: str, of: GpuShare, containers: list[ContainerPast], memory: Any
) -> None:
    assert patch_of(of, *containers) == ({"default": memory} if isinstance(memory, str) else memory), case


def test_the_figures_name_the_container_that_needed_most() -> None:
    advices, notes = smaller_default(
        history(containers=[container(5000, pod="big-0", memory_p95=4000), container(900)], defaults=seen(7))
    )
    (advice,) = advices
    assert notes == []
    assert advice.sure is Sureness.HIGH
    assert "none of 2 containers with the default was seen with more than 5000Mi (ml/big-0; " in advice.why
    assert "95th percentile at most 4000Mi) in 7d, 2016 samples" in advice.why
    assert "42Gi of each GPU become free" in advice.why
    assert advice.figures["mostUsedMiB"] == 5000
    assert advice.command(["--context=far"]) == (
        "kubectl --context=far patch gpushare team --type merge -p "
        """'{"spec":{"clients":{"memory":{"default":"5632Mi"}}}}'"""
    )


@pytest.mark.parametrize(
    ("days", "part", "says"),
    [
        (0.5, 1.0, "seen for 12h, too short a history: at least 1d is needed"),
        (2, 0.3, "seen in 30% of the samples since the first one"),
        (7, 0.003, "6 samples, at least 10 are needed"),
    ],
)
def test_a_history_that_is_too_short_or_full_of_holes_recommends_nothing(days: float, part: float, says: str) -> None:
    advice, (note,) = smaller_default(history(containers=[container(900)], defaults=seen(days, part)))
    assert advice == []
    assert says in note


@pytest.mark.parametrize(
    ("days", "part", "sure"),
    [(7, 1.0, Sureness.HIGH), (7, 0.8, Sureness.MEDIUM), (3, 1.0, Sureness.MEDIUM), (1, 1.0, Sureness.MEDIUM)],
)
def test_how_sure_it_is_follows_from_the_history(days: float, part: float, sure: Sureness) -> None:
    ((advice,), _) = smaller_default(history(containers=[container(900)], defaults=seen(days, part)))
    assert advice.sure is sure


def test_a_watch_is_a_glimpse() -> None:
    two_minutes = seen(120 / 86400, 60.0)
    ((advice,), _) = smaller_default(
        history(containers=[container(900)], source=HistorySource.WATCH, step=5.0, defaults=two_minutes)
    )
    assert advice.sure is Sureness.LOW
    assert advice.change == "memory.default 12Gi", "README's own pod, which asks for as much, is admitted still"
    assert "a watch lowers it by 25% at most" in advice.why


@pytest.mark.parametrize(
    ("containers", "words"),
    [
        ([container(5000)], "; a tenth more is enough, and"),
        ([container(100)], "; 768Mi is what CUDA contexts at threads.max 100% need, and"),
        ([container(180), container(180, 8192, "own")], "; ml/own asks for 8Gi, and nobody may ask for more, and"),
    ],
)
def test_advice_says_why_it_is_not_less(containers: list[ContainerPast], words: str) -> None:
    ((advice,), _) = smaller_default(history(containers=containers))
    assert words in advice.why


def test_a_full_grant_is_told_and_never_lowered() -> None:
    advice, (note,) = smaller_default(history(containers=[container(15_900, pod="jax"), container(10)]))
    assert advice == []
    assert note.startswith("1 of 2 containers had 90% of the memory granted or more, such as ml/jax")


AMOUNTS = st.integers(1, 40_000)


@given(st.lists(st.tuples(AMOUNTS, st.sampled_from([16_384, 8192, 20_000, None])), max_size=6), st.booleans())
def test_a_lower_default_is_enough_for_everybody_who_was_seen(
    usages: list[tuple[int, int | None]], overcommit: bool
) -> None:
    containers = [container(most, granted, f"pod-{at}") for at, (most, granted) in enumerate(usages)]
    advice, _ = smaller_default(history(share(overcommit=overcommit), containers=containers))
    for item in advice:
        assert item.patch is not None
        after = patched(share(overcommit=overcommit), item.patch)
        assert after.memory_default_mib < 16_384
        assert all(
            container.memory_most < after.memory_default_mib for container in containers if container.granted == 16_384
        )
        asked = [
            container.granted
            for container in containers
            if container.granted is not None and container.granted < 16_384
        ]
        assert max(asked, default=0) <= after.memory_max_mib
