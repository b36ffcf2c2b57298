"""Verdicts: both ratios count, at both ends of the depths."""

import pytest

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.reporting.verdicts import (
    ALONE,
    CLEARLY,
    LESS,
    LITTLE,
    SLICES,
    UNKNOWN,
    Gain,
    LoadVerdict,
    gain,
    verdict,
    verdicts,
)
from gpushare_workload.results.summary import rows
from tests.unit.workload.reporting.inputs import DEEP, SCALING

ALWAYS, OFTEN, SELDOM = "", " and wait often", " and wait seldom"


def words(alone: Gain, slices: Gain, alone_where: str = ALWAYS, slices_where: str = ALWAYS) -> str:
    return f"{ALONE[alone].format(where=alone_where)} {SLICES[slices].format(where=slices_where)}"


@pytest.mark.parametrize(
    ("slices", "alone", "said"),
    [
        pytest.param([26.0, 7.0], [7.6, 7.2], "Share: it pays at every depth.", id="small kernels"),
        pytest.param([9.0], [3.0], "Share: it pays at every depth.", id="one depth"),
        pytest.param([11.0, 1.4], [3.0, 1.2], "Share, if programs wait often.", id="alone does as well when deep"),
        pytest.param([1.8, 1.1], [1.5, 1.4], "Share, if programs wait often.", id="time slices do as well when deep"),
        pytest.param([1.1, 1.8], [1.4, 1.5], "Share, if programs wait seldom.", id="gains when deep"),
        pytest.param(
            [1.77, 1.13], [1.13, 1.03], words(Gain.LITTLE, Gain.CLEAR, ALWAYS, OFTEN), id="saturating on an H100"
        ),
        pytest.param([1.8, 1.5], [1.0, 1.0], words(Gain.SAME, Gain.CLEAR), id="one after the other does as well"),
        pytest.param([1.8, 1.5], [0.8, 0.9], words(Gain.LESS, Gain.CLEAR), id="one after the other does better"),
        pytest.param([1.2, 1.0], [1.1, 1.0], words(Gain.LITTLE, Gain.LITTLE), id="a little of both"),
        pytest.param([1.05, 0.96], [1.0, 1.0], words(Gain.SAME, Gain.SAME), id="no gain"),
        pytest.param([0.9, 0.9], [1.5, 1.4], words(Gain.CLEAR, Gain.LESS), id="share, but not with MPS"),
        pytest.param(
            [1.1, 1.4], [1.4, 1.1], words(Gain.CLEAR, Gain.CLEAR, OFTEN, SELDOM), id="never both at one depth"
        ),
        pytest.param([1.8, 1.5], [1.6, None], f"{SLICES[Gain.CLEAR].format(where='')} {UNKNOWN}", id="alone unknown"),
    ],
)
def test_a_verdict_follows_both_ratios(slices: list[float], alone: list[float | None], said: str) -> None:
    both = zip(slices, alone, strict=True)
    assert verdict([(even(slices), None if alone is None else even(alone)) for slices, alone in both]) == said


def even(ratio: float) -> Spread:
    """The same in every repeat."""
    return Spread(ratio, ratio, ratio)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (even(CLEARLY), Gain.CLEAR),
        (Spread(1.6, CLEARLY - 0.01, 1.8), Gain.LITTLE),
        (Spread(1.2, LITTLE, 1.3), Gain.SAME),
        (Spread(0.9, 0.8, LESS), Gain.SAME),
        (Spread(0.9, 0.8, LESS - 0.01), Gain.LESS),
    ],
)
def test_a_gain_or_a_loss_is_one_of_every_repeat(ratio: Spread, expected: Gain) -> None:
    assert gain(ratio) is expected


def test_a_load_has_one_verdict_and_both_ratios_at_both_ends() -> None:
    assert verdicts(rows([*SCALING, *DEEP])) == [
        LoadVerdict(
            "Compute, 8 blocks",
            "Share, if programs wait often.",
            (("2", "1", "2.00", "2.00"), ("2", "64", "1.00", "1.00")),
        )
    ]


def test_what_fills_the_gpu_gets_no_advice_to_share() -> None:
    """The report once said so of kernels at 1.13 times one client alone."""
    said = verdict([(even(1.77), even(1.13)), (even(1.13), even(1.03))])
    assert said.startswith("Sharing gets little more done than one program after the other.")
