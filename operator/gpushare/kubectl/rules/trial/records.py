"""A trial as JSON, which `compare` and `trial` write and `compare --read` judges anew. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from gpushare.kubectl.rules.trial.cases import (
    CaseOutcome,
    Ending,
    TrialCase,
    TrialMode,
    TrialPlan,
    WindowFigures,
    not_measured,
    why_stopped,
)
from gpushare.kubectl.rules.trial.options import RunTimes
from gpushare.kubectl.rules.trial.protect import JobWay, ProtectTerms
from gpushare.kubectl.rules.trial.rows import TrialRow, case_json, rows_of
from gpushare.kubectl.rules.trial.search import protect_verdict
from gpushare.kubectl.rules.trial.verdict import TrialVerdict, verdict_of

SCHEMA = "gpushare.dev/compare/v1"


@dataclass(frozen=True)
class TrialRecord:
    """Everything that was measured. `timed` is False for figures whose times are not those of a GPU. `cap`:
    percent of the SMs of each copy in mode CAPPED. `ended`: why it did not run to its end, if so.
    """

    programs: Sequence[Sequence[str]]
    plan: TrialPlan
    times: RunTimes
    outcomes: Sequence[CaseOutcome]
    timed: bool
    environment: Mapping[str, Any] = field(default_factory=dict)
    cap: float | None = None
    ended: str = ""

    @cached_property
    def rows(self) -> list[TrialRow]:
        return rows_of(self.outcomes)

    @cached_property
    def verdict(self) -> TrialVerdict:
        if (terms := self.plan.protect) is not None:
            return protect_verdict(self.plan, terms, self.outcomes, self.rows, self.timed)
        return verdict_of(self.rows, self.timed)

    @property
    def stopped(self) -> list[str]:
        """A sentence about each case that was left out or did not work."""
        if self.plan.protect is not None:
            return not_measured(self.outcomes)
        return why_stopped(self.plan, self.outcomes)

    def as_json(self) -> dict[str, Any]:
        plan = {**asdict(self.plan), **asdict(self.times), "cap_percent": self.cap}
        plan = _known(plan | {"protect": self.plan.protect and self.plan.protect.as_json()}, "protect")
        return {
            "schema": SCHEMA,
            "timed": self.timed,
            "programs": [list(program) for program in self.programs],
            "plan": plan,
            "environment": dict(self.environment),
            "verdict": {"answer": self.verdict.answer.value, "sentence": self.verdict.sentence},
            "stopped": self.stopped,
            "ended": self.ended,
            "rows": [row.as_json() for row in self.rows],
            "runs": [_run(outcome) for outcome in self.outcomes],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "TrialRecord":
        """Raises ValueError for another schema, and KeyError, TypeError or AttributeError for what is no record."""
        if value.get("schema") != SCHEMA:
            raise ValueError(f"the schema is {value.get('schema')!r}, not {SCHEMA!r}")
        plan = value["plan"]
        modes = tuple(TrialMode(mode) for mode in plan["modes"])
        return cls(
            programs=tuple(tuple(map(str, program)) for program in value["programs"]),
            plan=TrialPlan(
                modes,
                tuple(plan["copies"]),
                plan["programs"],
                plan["repeats"],
                plan["seed"],
                ProtectTerms.from_json(plan["protect"]) if "protect" in plan else None,
            ),
            times=RunTimes(plan["warmup"], plan["window"], plan["start"], plan["windows"]),
            outcomes=tuple(map(_outcome, value["runs"])),
            timed=bool(value["timed"]),
            environment=dict(value["environment"]),
            cap=plan["cap_percent"],
            ended=str(value["ended"]),
        )


def _run(outcome: CaseOutcome) -> dict[str, Any]:
    values = asdict(outcome)
    del values["case"]
    values |= {"windows": [_known(window, "worst_p99_ms") for window in values["windows"]]}
    values = _known(values, "used_gpu")
    return case_json(outcome.case) | values


def _known(values: dict[str, Any], name: str) -> dict[str, Any]:
    """The values without this one where it is not known, as in records from before it was asked."""
    return {key: value for key, value in values.items() if key != name or value not in (None, ())}


def _outcome(run: Mapping[str, Any]) -> CaseOutcome:
    return CaseOutcome(
        case=TrialCase(TrialMode(run["mode"]), tuple(run["copies"]), JobWay(**run["way"]) if "way" in run else None),
        repeat=run["repeat"],
        ending=Ending(run["ending"]),
        windows=tuple(map(_window, run["windows"])),
        reason=run["reason"],
        busy_percent=run["busy_percent"],
        memory_mib=run["memory_mib"],
        notes=tuple(run["notes"]),
        used_gpu=run.get("used_gpu"),  # records from before it was asked have none
    )


def _window(value: Mapping[str, Any]) -> WindowFigures:
    rates = tuple(tuple(map(float, copies)) for copies in value["rates"])
    return WindowFigures(rates, tuple(value["p50_ms"]), tuple(value["p99_ms"]), tuple(value.get("worst_p99_ms", ())))
