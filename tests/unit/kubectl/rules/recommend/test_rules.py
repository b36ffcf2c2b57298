"""Whatever was seen: each patch, and every set of them in any order, leaves a share that keeps its GPUs."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.gpushare import CONTEXT_RESERVE_MIB, GpuShare
from gpushare.api.quantity import parse_mib
from gpushare.kubectl.rules.recommend.advice import patched
from gpushare.kubectl.rules.recommend.history import HistorySource, Observed, ShareHistory
from gpushare.kubectl.rules.recommend.rules import recommend
from tests.unit.kubectl.rules.recommend.made_up import DAY, GPU_MIB, container, fault, gpu, history, share

PARTS = st.one_of(st.none(), st.floats(0, 4))


@st.composite
def histories(draw: st.DrawFn) -> ShareHistory:
    per_gpu = draw(st.integers(1, 24))
    overcommit = draw(st.booleans())
    most = 80_000 if overcommit else (GPU_MIB - CONTEXT_RESERVE_MIB) // per_gpu
    lent = 0 if overcommit or draw(st.booleans()) else draw(st.integers(most, 2 * most))
    percent = max(100, -(-100 * (per_gpu * lent + CONTEXT_RESERVE_MIB) // GPU_MIB))
    lends = {"limits": {"max": f"{lent}Mi", "overcommitPercent": percent}} if lent >= 512 else {}
    of = share(
        per_gpu,
        f"{draw(st.integers(512, most))}Mi",
        draw(st.integers(1, 100)),
        overcommit=overcommit,
        processes=draw(st.integers(1, 2)),
        **lends,
    )
    gpus = [
        gpu(
            draw(st.integers(0, per_gpu)),
            f"GPU-{number}",
            busy_when_full=draw(st.one_of(st.none(), st.floats(0, 1))),
            memory_most=draw(st.one_of(st.none(), st.integers(0, GPU_MIB))),
            threads_most=draw(PARTS),
        )
        for number in range(draw(st.integers(0, 3)))
    ]
    granted = st.one_of(st.none(), st.just(of.memory_default_mib), st.integers(1, most))
    containers = [
        container(
            peak := draw(st.integers(0, max(most, lent))),
            draw(granted),
            f"pod-{number}",
            samples=draw(st.integers(0, 2016)),
            memory_p95=draw(st.integers(0, peak)),
        )
        for number in range(draw(st.integers(0, 4)))
    ]
    observed = st.one_of(st.none(), st.builds(Observed, st.integers(0, 2016), st.floats(0, 7 * DAY)))
    return history(
        of,
        source=draw(st.sampled_from(HistorySource)),
        clients=draw(observed),
        defaults=draw(observed),
        full=draw(st.integers(0, 2016)),
        held_together=draw(st.integers(0, 3 * per_gpu)),
        gpus=gpus,
        containers=containers,
        faults=[fault(1, "ml/pod"), fault(2, "ml/pod", "ml/other")] if draw(st.booleans()) else [],
    )


def fits(of: GpuShare) -> bool:
    clients = of.spec.clients
    memory = clients.memory.overcommit or (
        clients.per_gpu * of.memory_default_mib + CONTEXT_RESERVE_MIB <= GPU_MIB
        and of.memory_default_mib <= of.memory_max_mib
    )
    lent = of.limits_memory
    limits = lent is None or (
        of.full_gpu_limits_mib <= lent.overcommit_percent * GPU_MIB // 100
        and max(of.memory_default_mib, parse_mib(lent.default or "512Mi")) <= parse_mib(lent.max)
        and of.memory_default_mib <= parse_mib(lent.default or lent.max)
    )
    return memory and limits and of.contexts_per_gpu <= 48 and clients.threads.default <= clients.threads.max


@given(histories(), st.randoms())
def test_all_patches_together_and_apart_leave_a_share_that_fits(past: ShareHistory, order: object) -> None:
    patches = [advice.patch for advice in recommend(past).advice if advice.patch is not None]
    assert len(patches) <= 3
    for patch in patches:
        assert fits(patched(past.share, patch))
    order.shuffle(patches)  # type: ignore[attr-defined]
    after = past.share
    for patch in patches:
        after = patched(after, patch)
        assert fits(after)


@given(histories())
def test_a_share_without_advice_has_a_reason(past: ShareHistory) -> None:
    recommended = recommend(past)
    for advice in recommended.advice:
        assert advice.why
        assert advice.now != advice.change
        assert advice.figures["samples"] >= 10 or advice.patch is None
    if past.clients is None:
        assert any("not seen" in note for note in recommended.notes)
        assert not [advice for advice in recommended.advice if "perGpu" in advice.change]
