"""Figures that cannot be true are refused: they come from a mistake in the measurement, not from a fast GPU. Pure."""

from collections.abc import Sequence

from gpushare_workload.backend.work import Peaks, Work, implausible
from gpushare_workload.bench.results import Run

HARMLESS = frozenset({"idle", "applications-clocks", "display-clock", "sync-boost"})
"""Reasons for a clock below the highest that are settings, or that end with the work."""


def refusal(run: Run, work: Work, peaks: Peaks) -> str:
    """A sentence that says why the run's figures cannot be true; empty where they can."""
    silent = [result.client for result in run.results if not result.kernels]
    if silent:
        return f"client {silent[0]} ended no kernel within {run.window:g} s: the window is too short for this load"
    return implausible(work, run.total_rate, peaks) or ""


def clock_warnings(reasons: Sequence[str]) -> tuple[str, ...]:
    """One sentence for each reason for which the GPU ran slower than it is set to."""
    return tuple(f"clocks were throttled: {reason}" for reason in reasons if reason not in HARMLESS)
