"""Outcomes of cases with figures that a test chooses."""

from collections.abc import Sequence

from gpushare.kubectl.rules.trial.cases import CaseOutcome, Ending, TrialCase, TrialMode, WindowFigures

ALONE = TrialCase(TrialMode.ALONE, (1,))


def measured(
    case: TrialCase, *rates: float, repeat: int = 0, memory: int | None = 1000, p99: float | None = None
) -> CaseOutcome:
    """Each of `rates` is a window in which every copy of every program reached that rate."""
    latency = tuple(p99 if count else None for count in case.copies)
    windows = tuple(WindowFigures(tuple((rate,) * count for count in case.copies), latency, latency) for rate in rates)
    total = None if memory is None else memory * case.total
    return CaseOutcome(case, repeat, Ending.MEASURED, windows, busy_percent=50.0, memory_mib=total)


def failed(case: TrialCase, ending: Ending = Ending.NO_MEMORY, repeat: int = 0) -> CaseOutcome:
    return CaseOutcome(case, repeat, ending, reason="its last lines")


def case(mode: TrialMode, *copies: int) -> TrialCase:
    return TrialCase(mode, copies)


def curve(gains: Sequence[float], mode: TrialMode = TrialMode.MPS) -> list[CaseOutcome]:
    """One copy alone at 100 per second, then 2, 4, 8 … copies with these gains."""
    outcomes = [measured(ALONE, 100.0)]
    for place, gain in enumerate(gains):
        count = 2 ** (place + 1)
        outcomes.append(measured(case(mode, count), gain * 100 / count))
    return outcomes
