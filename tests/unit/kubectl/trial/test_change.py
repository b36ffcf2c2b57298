"""The change of a share that a trial's figures support."""

from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.rules.recommend.advice import patched
from gpushare.kubectl.rules.trial.cases import Ending, TrialCase, TrialMode
from gpushare.kubectl.rules.trial.rows import TrialRow
from gpushare.kubectl.rules.trial.spread import Spread
from gpushare.kubectl.rules.trial.verdict import verdict_of
from gpushare.kubectl.trial.command import change_of


def row(copies: int, gain: float, memory_mib: int | None) -> TrialRow:
    case = TrialCase(TrialMode.ALONE if copies == 1 else TrialMode.SLOTS, (copies,))
    spread = Spread.of([gain, gain, gain])
    return TrialRow(case, Ending.MEASURED, 3, 1, (spread,), spread, None, spread, (None,), (None,), None, memory_mib)


def of_pair(gain: float, memory_mib: int | None, *copies: int) -> TrialRow:
    mode = TrialMode.ALONE if sum(copies) == 1 else TrialMode.SLOTS
    spread, none = Spread.of([gain, gain, gain]), (None, None)
    return TrialRow(
        TrialCase(mode, copies),
        Ending.MEASURED,
        3,
        1,
        (spread, spread),
        spread,
        None,
        spread,
        none,
        none,
        None,
        memory_mib,
    )


def share(per_gpu: int = 8, **memory: Any) -> GpuShare:
    clients = {"perGpu": per_gpu, "memory": {"default": "8Gi"} | memory}
    return GpuShare.model_validate({"metadata": {"name": "s"}, "spec": {"clients": clients}})


def change(share: GpuShare, *rows: TrialRow) -> dict[str, Any]:
    """The change of spec.clients; empty for none."""
    patch = change_of(verdict_of(rows, timed=True), rows, share)
    if patch is None:
        return {}
    patched(share, patch)  # is a share
    clients: dict[str, Any] = patch["spec"]["clients"]
    return clients


SMALL, LARGE = of_pair(1.0, 1000, 1, 0), of_pair(1.0, 5000, 0, 1)
ALONE, TWO, FOUR, EIGHT = row(1, 1.0, 3000), row(2, 1.9, 2900), row(4, 3.6, 2800), row(8, 3.65, 6000)
CASES: dict[str, tuple[GpuShare, tuple[TrialRow, ...], dict[str, Any]]] = {
    "as many as pay, each with a tenth more than the most seen": (
        share(),
        (ALONE, TWO, FOUR, EIGHT),
        {"perGpu": 4, "memory": {"default": "3328Mi"}},
    ),
    "already so many": (share(4), (ALONE, TWO, FOUR), {"memory": {"default": "3328Mi"}}),
    "memory not known": (share(), (row(1, 1.0, None), row(4, 3.6, None)), {"perGpu": 4}),
    "never more memory than each had": (share(default="3Gi"), (ALONE, FOUR), {"perGpu": 4}),
    "the least that a context needs": (
        share(),
        (row(1, 1.0, 9), row(4, 3.6, 9)),
        {"perGpu": 4, "memory": {"default": "768Mi"}},
    ),
    "pods may ask for more": (
        share(overcommit=True),
        (ALONE, FOUR),
        {"perGpu": 4, "memory": {"default": "3328Mi", "max": "8Gi"}},
    ),
    "a pair: two clients, each with what the larger program needs": (
        share(),
        (SMALL, LARGE, of_pair(1.8, 3000, 1, 1)),
        {"perGpu": 2, "memory": {"default": "5632Mi"}},
    ),
    "a pair that had more beside each other": (
        share(2),
        (SMALL, SMALL, of_pair(1.8, 1200, 1, 1)),
        {"memory": {"default": "1536Mi"}},
    ),
    "a pair without a gain": (share(), (SMALL, LARGE, of_pair(1.0, 3000, 1, 1)), {}),
    "no gain": (share(), (ALONE, row(2, 1.0, 3000)), {}),
    "nothing to change": (share(4, default="3Gi"), (ALONE, TWO, FOUR), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_change_of_a_share(case: str) -> None:
    before, rows, wanted = CASES[case]
    assert change(before, *rows) == wanted
