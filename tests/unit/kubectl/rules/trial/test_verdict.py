"""The verdict says what the figures say, with their spread; the share that follows is one that the CRD takes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.gpushare import CONTEXT_RESERVE_MIB, GpuShare
from gpushare.kubectl.rules.trial.apply import share_of
from gpushare.kubectl.rules.trial.cases import BARE, CaseOutcome, Ending, TrialCase, TrialMode, WindowFigures
from gpushare.kubectl.rules.trial.printed import CopyFigures, window_of
from gpushare.kubectl.rules.trial.rows import rows_of, table_of
from gpushare.kubectl.rules.trial.verdict import Answer, verdict_of
from tests.unit.kubectl.rules.trial.made_up import ALONE, case, curve, failed, measured

SLICES, MPS, CAPPED = BARE


def four(*mps: float, slices: tuple[float, ...] = (25.0,), capped: tuple[float, ...] = ()) -> list[CaseOutcome]:
    """One alone at 100 per second; four copies at these rates each."""
    outcomes = [
        measured(ALONE, 100.0, p99=5.0),
        measured(case(SLICES, 4), *slices),
        measured(case(MPS, 4), *mps, p99=7.0),
    ]
    return [*outcomes, measured(case(CAPPED, 4), *capped)] if capped else outcomes


def uneven(of: TrialCase, *rates: float) -> CaseOutcome:
    """One window in which the copies of one program reached these rates."""
    return CaseOutcome(of, 0, Ending.MEASURED, (WindowFigures((rates,), (None,), (None,)),))


def pair(first: float, second: float, each: float) -> list[CaseOutcome]:
    """Two programs alone at these rates, and both beside each other at the same one."""
    alone = [measured(case(TrialMode.ALONE, 1, 0), first), measured(case(TrialMode.ALONE, 0, 1), second)]
    return [*alone, measured(case(TrialMode.SLOTS, 1, 1), each)]


@pytest.mark.parametrize(
    ("outcomes", "answer", "sentence"),
    [
        (
            four(80.0, 90.0, 85.0),
            Answer.HELPS,
            "Sharing helps: 4 copies under MPS do 3.40 times the work of one alone (3.20 to 3.60 in 3 windows of one "
            "run), each at 85% of its speed alone, the slowest at 85%, p99 1.40 times that alone, and 3.40 "
            "(3.20–3.60) times that of time slices.",
        ),
        (
            four(80.0),
            Answer.HELPS,
            "Sharing helps: 4 copies under MPS do 3.20 times the work of one alone (measured once, so its spread is "
            "not known), each at 80% of its speed alone, the slowest at 80%, p99 1.40 times that alone, and 3.20 times "
            "that of time slices.",
        ),
        (
            four(40.0, 40.0, slices=(39.5,)),
            Answer.HELPS,
            "Sharing helps, and needs no MPS: 4 copies under MPS do 1.60 times the work of one alone (1.60 to 1.60 "
            "in 2 windows of one run), each at 40% of its speed alone, the slowest at 40%, p99 1.40 times that "
            "alone, and "
            "1.01 times that of time slices.",
        ),
        (
            four(36.0, 44.0, slices=(37.0,)),
            Answer.HELPS,
            "Sharing helps; whether MPS helps more than time slices is not clear: 4 copies under MPS do 1.60 times the "
            "work of one alone (1.44 to 1.76 in 2 windows of one run), each at 40% of its speed alone, the slowest "
            "at 40%, "
            "p99 1.40 times that alone, and 1.08 (0.97–1.19) times that of time slices.",
        ),
        (
            four(36.0, 42.0, slices=(40.0,)),
            Answer.UNCLEAR,
            "Unclear: 4 copies under MPS do 1.56 times the work of one alone (1.44 to 1.68 in 2 windows of one run), "
            "each at 39% of its speed alone, the slowest at 39%, p99 1.40 times that alone, and 0.97 (0.90–1.05) times "
            "that of time slices; MPS may lose to time slices; measure longer or more often.",
        ),
        (
            [*four(40.0, slices=(50.0,)), measured(case(MPS, 8), 20.0), measured(case(SLICES, 8), 25.0)],
            Answer.NO_GAIN,
            "MPS brings no gain, since it loses to time slices: 4 copies under MPS do 1.60 times the work of one alone "
            "(measured once, so its spread is not known), each at 40% of its speed alone, the slowest at 40%, p99 1.40 "
            "times that alone, and 0.80 times that of time slices.",
        ),
        (
            [measured(ALONE, 100.0, p99=5.0), measured(case(MPS, 4), 60.0, 61.0, p99=10.5)],
            Answer.SLOWS,
            "Sharing gets more done, at a price: 4 copies under MPS do 2.42 times the work of one alone (2.40 to 2.44 "
            "in 2 windows of one run), each at 60% of its speed alone, the slowest at 60%, p99 2.10 times that alone. "
            "A batch job may pay that, a service may not: p99 is more than 2 times that alone.",
        ),
        (
            [measured(ALONE, 100.0), uneven(case(MPS, 4), 90.0, 90.0, 90.0, 20.0)],
            Answer.SLOWS,
            "Sharing gets more done, at a price: 4 copies under MPS do 2.90 times the work of one alone (measured "
            "once, so its spread is not known), each at 72% of its speed alone, the slowest at 20%, p99 not measured. "
            "A batch job may pay that, a service may not: the slowest gets less than 50% of the mean speed.",
        ),
        (
            four(90.0, 110.0),
            Answer.HELPS,
            "Sharing helps: 4 copies under MPS do 4.00 times the work of one alone (3.60 to 4.40 in 2 windows of one "
            "run, where more than 4 means that one alone was slow), each at 100% of its speed alone, the slowest at "
            "100%, "
            "p99 1.40 times that alone, and 4.00 (3.60–4.40) times that of time slices.",
        ),
        (
            four(130.0, slices=(100.0,)),
            Answer.UNCLEAR,
            "No verdict: 4 copies under MPS did 5.20 times the work of one alone, and sharing brings 4 at most: "
            "what ran alone was slower than beside others, so every figure against it is too large. 4 copies under "
            "MPS did 1.30 times the work of time slices. Measure again on a quiet host.",
        ),
        (
            four(25.0, 25.5),
            Answer.NO_GAIN,
            "Sharing brings no gain: 4 copies under MPS do 1.01 times the work of one alone (1.00 to 1.02 in 2 "
            "windows of one run), each at 25% of its speed alone, the slowest at 25%, p99 1.40 times that alone, and "
            "1.01 "
            "(1.00–1.02) times that of time slices; one alone keeps the GPU busy 50 % of the time.",
        ),
        (
            four(25.0, 40.0),
            Answer.UNCLEAR,
            "Unclear: 4 copies under MPS do 1.30 times the work of one alone (1.00 to 1.60 in 2 windows of one run), "
            "each at 32% of its speed alone, the slowest at 32%, p99 1.40 times that alone, and 1.30 (1.00–1.60) "
            "times that "
            "of time slices; the spread includes 1.2, below which sharing is not worth it; measure longer or more "
            "often.",
        ),
        (
            [measured(ALONE, 100.0), failed(case(MPS, 2))],
            Answer.UNCLEAR,
            "No verdict: 2 copies do not fit into the GPU's memory.",
        ),
        (
            [measured(ALONE, 100.0), failed(case(MPS, 2), Ending.FAILED)],
            Answer.UNCLEAR,
            "No verdict: 2 copies under MPS did not work.",
        ),
        (
            [measured(ALONE, 100.0), failed(case(TrialMode.SLOTS, 2), Ending.NO_ROOM)],
            Answer.UNCLEAR,
            "No verdict: the share has no room for 2 copies.",
        ),
        (
            [measured(ALONE, 100.0), measured(case(SLICES, 2), 50.0)],
            Answer.UNCLEAR,
            "No verdict: no copies ran beside each other under MPS.",
        ),
        (
            [
                measured(case(TrialMode.ALONE, 1, 0), 100.0),
                measured(case(TrialMode.ALONE, 0, 1), 50.0),
                measured(case(MPS, 1, 1), 45.0),
            ],
            Answer.HELPS,
            "Sharing helps: the pair under MPS does the work of 1.35 GPUs that each run one of the programs (measured "
            "once, so its spread is not known), the slowest at 45% of its speed alone, p99 not measured.",
        ),
        (
            pair(100.0, 100.0, 51.0),
            Answer.NO_GAIN,
            "Sharing brings no gain: the pair in slots of the share does the work of 1.02 GPUs that each run one of "
            "the programs (measured once, so its spread is not known), the slowest at 51% of its speed alone, p99 not "
            "measured; program 1 alone keeps the GPU busy 50 % of the time; program 2 alone keeps the GPU busy 50 % "
            "of the time.",
        ),
        (
            pair(100.0, 50.0, 80.0),
            Answer.UNCLEAR,
            "No verdict: the pair in slots of the share did the work of 2.40 GPUs that each run one of the programs, "
            "and sharing brings 2 at most: what ran alone was slower than beside others, so every figure against it "
            "is too large. Measure again on a quiet host.",
        ),
        (
            [
                *pair(100.0, 50.0, 80.0)[:2],
                measured(case(SLICES, 1, 1), 50.0),
                measured(case(MPS, 1, 1), 80.0),
            ],
            Answer.UNCLEAR,  # what the pair did against time slices weighs each program by its figure alone
            "No verdict: the pair under MPS did the work of 2.40 GPUs that each run one of the programs, and sharing "
            "brings 2 at most: what ran alone was slower than beside others, so every figure against it is too large. "
            "Measure again on a quiet host.",
        ),
        (
            [*pair(100.0, 50.0, 80.0)[:2], failed(case(TrialMode.SLOTS, 1, 1))],
            Answer.UNCLEAR,
            "No verdict: the pair does not fit into the GPU's memory.",
        ),
    ],
)
def test_the_sentence_says_what_was_measured(outcomes: list[CaseOutcome], answer: Answer, sentence: str) -> None:
    verdict = verdict_of(rows_of(outcomes), timed=True)
    assert (verdict.answer, verdict.sentence) == (answer, sentence)


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize(
    ("alone", "who"),
    [([replace(measured(ALONE, 100.0), used_gpu=False)], "one copy alone"),
     ([measured(case(TrialMode.ALONE, 1, 0), 9.0), replace(measured(case(TrialMode.ALONE, 0, 1), 9.0), used_gpu=False)],
      "program 2, alone,")],
    ids=["one program", "the second of a pair"],
)  # fmt: skip
def test_a_program_that_never_used_the_gpu_gets_no_verdict(alone: list[CaseOutcome], who: str, timed: bool) -> None:
    verdict = verdict_of(rows_of([*alone, measured(case(MPS, *(4 // len(alone),) * len(alone)), 95.0)]), timed)
    assert (verdict.answer, verdict.best) == (Answer.UNCLEAR, None)
    assert verdict.sentence.startswith(f"No verdict: {who} never used the GPU: ")


def test_the_p99_is_that_of_the_copy_that_waits_longest() -> None:
    """Together their p99 is 5 ms, for the one that waits has few requests."""
    window = window_of([[CopyFigures(70.0, (5.0,) * 1000), CopyFigures(70.0, (12.0,) * 5)]])
    assert (window.p99_ms, window.worst_p99_ms) == ((5.0,), (12.0,))
    two = CaseOutcome(case(MPS, 2), 0, Ending.MEASURED, (window,))
    verdict = verdict_of(rows_of([measured(ALONE, 100.0, p99=5.0), two]), timed=True)
    assert verdict.answer is Answer.SLOWS
    assert "p99 2.40 times that alone" in verdict.sentence


def test_copies_that_pass_the_rule_go_before_more_that_wait_too_long() -> None:
    alone, four_, eight = measured(ALONE, 100.0, p99=5.0), case(MPS, 4), case(MPS, 8)
    best = verdict_of(rows_of([alone, measured(four_, 70.0, p99=9.0), measured(eight, 60.0, p99=11.0)]), True).best
    assert best is not None
    assert best.case == four_


@given(
    st.lists(st.floats(0.01, 3.0), min_size=2, max_size=6),
    st.floats(0.1, 5.0),
    st.floats(0.5, 1.5),
)
def test_sharing_helps_only_where_every_part_of_the_rule_holds(
    parts: list[float], p99: float, of_slices: float
) -> None:
    copies, together = len(parts), sum(parts)
    mps = uneven(case(MPS, copies), *(100 * part for part in parts))
    mps = replace(mps, windows=tuple(replace(window, p99_ms=(p99,)) for window in mps.windows))
    slices = measured(case(SLICES, copies), together * 100 / of_slices / copies)
    answer = verdict_of(rows_of([measured(ALONE, 100.0, p99=1.0), slices, mps]), timed=True).answer
    margins = (together / 1.2, 2 / p99, 2 * min(parts) * copies / together, of_slices)
    if answer is Answer.HELPS:
        assert min(margins) >= 1 - 1e-9
    elif max(together, together / of_slices) < copies:  # else one alone was slow
        assert min(margins) <= 1 + 1e-9


def test_a_simulated_gpu_gets_no_verdict_no_speed_and_no_share() -> None:
    rows = rows_of(four(80.0))
    verdict = verdict_of(rows, timed=False)
    assert verdict.answer is Answer.UNTIMED
    assert share_of(verdict, rows, "trial", "NVIDIA H200", 143771) is None
    assert "80" not in table_of(rows, timed=False)


@pytest.mark.parametrize(
    ("gains", "copies"),
    [([1.8, 3.2, 3.25], 4), ([1.8, 3.2, 4.0], 8), ([1.5], 2)],
    ids=["the last step brings nothing", "each step brings something", "two"],
)
def test_the_fewest_copies_are_recommended_beyond_which_nothing_is_gained(gains: list[float], copies: int) -> None:
    best = verdict_of(rows_of(curve(gains)), timed=True).best
    assert best is not None
    assert best.case.total == copies


def test_a_baseline_that_any_row_shows_to_be_slow_gives_no_verdict() -> None:
    rows = rows_of(
        [measured(ALONE, 100.0), measured(case(TrialMode.SLOTS, 2), 130.0), measured(case(TrialMode.SLOTS, 4), 99.0)]
    )
    verdict = verdict_of(rows, timed=True)
    assert (verdict.answer, verdict.best) == (Answer.UNCLEAR, None)
    assert verdict.sentence == (
        "No verdict: 2 copies in slots of the share did 2.60 times the work of one alone, and sharing brings 2 at "
        "most: what ran alone was slower than beside others, so every figure against it is too large. Measure again "
        "on a quiet host."
    )


def test_a_row_within_what_sharing_can_bring_is_not_doubted() -> None:
    outcomes = [measured(ALONE, 100.0), measured(case(MPS, 4), 104.0)]
    assert verdict_of(rows_of(outcomes), timed=True).answer is Answer.HELPS


def test_a_repeat_without_a_copy_alone_does_not_count() -> None:
    whole = [measured(ALONE, 100.0), measured(case(MPS, 4), 80.0)]
    half = [failed(ALONE, repeat=1), measured(case(MPS, 4), 20.0, repeat=1)]
    assert (
        "3.20 times the work of one alone (measured once" in verdict_of(rows_of([*whole, *half]), timed=True).sentence
    )


@pytest.mark.parametrize(
    ("repeats", "rates", "words"),
    [(1, (80.0, 90.0), "2 windows of one run"), (3, (80.0,), "3 runs"), (3, (80.0, 90.0), "6 windows of 3 runs")],
)
def test_the_spread_says_whether_it_is_of_windows_or_of_runs(
    repeats: int, rates: tuple[float, ...], words: str
) -> None:
    alone = [measured(ALONE, *(100.0 for _ in rates), repeat=repeat) for repeat in range(repeats)]
    four = [measured(case(MPS, 4), *rates, repeat=repeat) for repeat in range(repeats)]
    assert f" in {words})" in verdict_of(rows_of([*alone, *four]), timed=True).sentence


def test_ratios_are_taken_within_a_repeat() -> None:
    slow = [measured(ALONE, 50.0, repeat=1), measured(case(MPS, 4), 45.0, repeat=1)]
    row = rows_of([*four(90.0), *slow])[2]
    assert row.gain is not None
    assert (row.gain.least, row.gain.largest) == (3.6, 3.6)


@pytest.mark.parametrize(
    ("outcomes", "per_gpu", "threads", "memory"),
    [
        (four(80.0), 4, 100, "1280Mi"),
        (four(80.0, capped=(85.0,)), 4, 25, "1280Mi"),
        ([*four(80.0)[:2], measured(case(MPS, 4), 80.0, memory=40_000)], 4, 100, "35686Mi"),
        ([*four(80.0)[1:], measured(ALONE, 100.0, memory=10)], 4, 100, "1280Mi"),
    ],
    ids=["uncapped", "caps", "what the GPU has, divided", "the most that was seen"],
)
def test_the_share_has_the_copies_caps_and_memory_that_were_measured(
    outcomes: list[CaseOutcome], per_gpu: int, threads: int, memory: str
) -> None:
    rows = rows_of(outcomes)
    share = share_of(verdict_of(rows, timed=True), rows, "trial", "NVIDIA H200", 143771)
    assert share is not None
    assert share["spec"]["clients"] == {
        "perGpu": per_gpu,
        "threads": {"default": threads, "max": threads},
        "memory": {"default": memory},
    }
    assert share["spec"]["gpus"] == {"products": ["NVIDIA H200"]}


@given(
    st.sampled_from([MPS, CAPPED]),
    st.integers(2, 48),
    st.integers(0, 200_000),
    st.integers(1, 300_000),
    st.one_of(st.none(), st.floats(1, 100)),
)
def test_every_recommended_share_is_valid_and_fits_the_gpu(
    mode: TrialMode, copies: int, memory: int, gpu: int, cap: float | None
) -> None:
    rows = rows_of([measured(ALONE, 100.0, memory=memory), measured(case(mode, copies), 90.0, memory=memory)])
    share = share_of(verdict_of(rows, timed=True), rows, "trial", "NVIDIA H200", gpu, cap)
    if share is None:
        assert gpu < 2048
        return
    valid = GpuShare.model_validate(share)
    assert valid.spec.clients.per_gpu <= copies
    assert valid.spec.clients.per_gpu * valid.memory_default_mib + CONTEXT_RESERVE_MIB <= gpu
    assert valid.memory_default_mib >= 512
    assert valid.spec.clients.threads.default <= valid.spec.clients.threads.max


def test_the_table_has_a_line_for_each_case_with_its_spread() -> None:
    head, alone, slices, mps, lost = table_of(
        rows_of([*four(80.0, 90.0), failed(case(CAPPED, 4))]), timed=True
    ).splitlines()
    assert head.startswith("copies  how")
    assert "100" in alone
    assert "1.00" in slices
    assert "3.40 (3.20–3.60)" in mps
    assert "out of memory" in lost
