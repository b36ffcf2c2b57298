"""A trial's plan and runs as JSON, which `compare` and `trial` write and `compare --read` judges anew. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gpushare.trial.cases import CaseOutcome, Ending, TrialCase, TrialMode, TrialPlan, WindowFigures
from gpushare.trial.options import RunTimes

SCHEMA = "gpushare.dev/compare/v1"


def plan_as_json(plan: TrialPlan, times: RunTimes, windows: int = 1, cap: float | None = None) -> dict[str, Any]:
    """`windows`: of each run. `cap`: percent of the SMs of each copy in mode CAPPED."""
    return {**asdict(plan), **asdict(times), "windows": windows, "cap_percent": cap}


def plan_from_json(value: Mapping[str, Any]) -> tuple[TrialPlan, RunTimes]:
    """Raises KeyError, TypeError or ValueError for what is no plan."""
    modes = tuple(TrialMode(mode) for mode in value["modes"])
    plan = TrialPlan(modes, tuple(value["copies"]), value["programs"], value["repeats"], value["seed"])
    return plan, RunTimes(value["warmup"], value["window"], value["start"])


def runs_as_json(outcomes: Iterable[CaseOutcome]) -> list[dict[str, Any]]:
    return [
        {"mode": one.case.mode.value, "copies": list(one.case.copies)}
        | {name: value for name, value in asdict(one).items() if name != "case"}
        for one in outcomes
    ]


def runs_from_json(runs: Iterable[Mapping[str, Any]]) -> tuple[CaseOutcome, ...]:
    """Raises KeyError, TypeError or ValueError for what is no run."""
    return tuple(
        CaseOutcome(
            case=TrialCase(TrialMode(run["mode"]), tuple(run["copies"])),
            repeat=run["repeat"],
            ending=Ending(run["ending"]),
            windows=tuple(map(_window, run["windows"])),
            reason=run["reason"],
            busy_percent=run["busy_percent"],
            memory_mib=run["memory_mib"],
            notes=tuple(run["notes"]),
        )
        for run in runs
    )


def _window(value: Mapping[str, Any]) -> WindowFigures:
    rates = tuple(tuple(map(float, copies)) for copies in value["rates"])
    return WindowFigures(rates, tuple(value["p50_ms"]), tuple(value["p99_ms"]))
