"""What may run beside a service: the most of the GPU, by class and cap, with which its objective holds. Pure.

The job is tried with more and with less of the GPU, by halves, in each class that it may have: a service waits longer,
the more its neighbour has. What holds is run again in each further repeat, and gives way to less where it fails once.

Guarantees: an answer was measured, and held in every window of every repeat; a search ends after a few runs in each
class, whatever the figures.
"""

import math
import random
import statistics
from collections.abc import Sequence

from gpushare.kubectl.rules.trial.cases import (
    CaseOutcome,
    Ending,
    TrialCase,
    TrialMode,
    TrialPlan,
    WindowFigures,
    next_run,
)
from gpushare.kubectl.rules.trial.protect import RATE_VARIABLE, JobWay, ProtectTerms
from gpushare.kubectl.rules.trial.rows import TrialRow
from gpushare.kubectl.rules.trial.spread import Spread
from gpushare.kubectl.rules.trial.verdict import Answer, TrialVerdict, measured_in, no_verdict

SERVICE, JOB = (1, 0), (0, 1)
UNSERVED = 0.05
"""The part of its rate alone that a service may leave unserved in a window, beside what chance makes of it."""
DEVIATIONS = 3.0
"""Of the number of arrivals, which chance alone explains."""


def following(plan: TrialPlan, outcomes: Sequence[CaseOutcome]) -> tuple[int, TrialCase] | None:
    """(repeat, case) to run next, given everything that has run; None: there is no more to find out."""
    terms = plan.protect
    if terms is None:
        return next_run(plan, outcomes)
    ran = {(outcome.repeat, outcome.case) for outcome in outcomes}
    before = [*([TrialCase(TrialMode.CAPACITY, SERVICE)] if _is_found(terms) else []), *plan.alone()]
    for case in before:
        if (0, case) not in ran:
            return 0, case
    if _says_nothing(outcomes) or why_no_search(terms, outcomes):
        return None
    for ways in terms.ways():
        place = next_step([holds(case_of(plan, way), terms, outcomes) for way in ways])
        if place is not None and (0, case := case_of(plan, ways[place])) not in ran:
            return 0, case
        if place == 0 and ways[0] == JobWay(False, 100):
            break  # who needs no cap needs no class either
    held = [case_of(plan, way) for way in found(plan, terms, outcomes)]
    for repeat in range(1, plan.repeats if held else 1):
        shuffle = random.Random(f"{plan.seed}/{repeat}")  # noqa: S311 - an order, no secret
        again = [*plan.alone(), *held]
        for case in shuffle.sample(again, len(again)):
            if (repeat, case) not in ran:
                return repeat, case
    return None


def next_step(held: Sequence[bool | None]) -> int | None:
    """The place to try next among ways of which each leaves less to the job than the one before, or the first that
    holds, once the one before it is known not to. `held`: None is not known. None: the last does not hold.

    A way counts only if every way that leaves less, and was tried, holds too.
    """
    failed = max((place for place, known in enumerate(held) if known is False), default=-1)
    if failed == len(held) - 1:
        return None
    if held[0] is None:
        return 0
    good = next((place for place in range(failed + 1, len(held)) if held[place]), len(held))
    return good if good == failed + 1 else (failed + good) // 2


def case_of(plan: TrialPlan, way: JobWay) -> TrialCase:
    return TrialCase(plan.modes[0], (1, 1), way)


def found(plan: TrialPlan, terms: ProtectTerms, outcomes: Sequence[CaseOutcome]) -> list[JobWay]:
    """The way that leaves the job most, of each class in which one holds."""
    best = []
    for ways in terms.ways():
        held = [holds(case_of(plan, way), terms, outcomes) for way in ways]
        place = next_step(held)
        if place is not None and held[place]:
            best.append(ways[place])
    return best


def holds(case: TrialCase, terms: ProtectTerms, outcomes: Sequence[CaseOutcome]) -> bool | None:
    """Whether the objective held in every window in which the job ran so; None: it did not run so."""
    of_case = [outcome for outcome in outcomes if outcome.case == case]
    if not of_case:
        return None
    alone = _rate([window for outcome in outcomes if _is_service(outcome) for window in outcome.windows])
    return all(
        bool(outcome.windows) and all(_keeps(window, alone, terms) for window in outcome.windows) for outcome in of_case
    )


def _keeps(window: WindowFigures, alone: float, terms: ProtectTerms) -> bool:
    """Whether it answered in time, and all that asked: who is still in the queue has no latency yet."""
    latency, rate = latency_of(window, terms), window.rates[0][0]
    allowed = UNSERVED + DEVIATIONS / math.sqrt(max(1.0, alone * terms.seconds))
    return latency is not None and latency <= terms.slo.ms and rate >= alone * (1 - min(0.5, allowed))


def latency_of(window: WindowFigures, terms: ProtectTerms) -> float | None:
    """The service's, in ms, at the percentile of the objective."""
    return (window.p50_ms if terms.slo.percentile == 50 else window.p99_ms)[0]


def offered_rate(terms: ProtectTerms | None, outcomes: Sequence[CaseOutcome]) -> float | None:
    """Requests per second that the service is to be asked; None: its own rate, or not known yet."""
    asked = terms.rate if terms else None
    if asked is None or asked.percent is None:
        return asked.per_second if asked else None
    windows = [window for outcome in outcomes if outcome.case.mode is TrialMode.CAPACITY for window in outcome.windows]
    return _rate(windows) * asked.percent / 100 if windows else None


def why_no_search(terms: ProtectTerms, outcomes: Sequence[CaseOutcome]) -> str:
    """Why no job could be judged by what the service does alone, as a clause; empty where it can."""
    windows = [window for outcome in outcomes if _is_service(outcome) for window in outcome.windows]
    if not windows:
        return ""
    latencies = [latency_of(window, terms) for window in windows]
    known = [latency for latency in latencies if latency is not None]
    if len(known) < len(latencies):
        return "the service printed no latency in a window: name it by --latency-json or --latency-regex"
    rate = _rate(windows)
    if (requests := rate * terms.seconds) < terms.slo.least_requests:
        return (
            f"a window has {requests:.0f} requests, and a p{terms.slo.percentile} needs at least "
            f"{terms.slo.least_requests}: give more --seconds"
        )
    offered = offered_rate(terms, outcomes)
    if offered is not None and abs(rate / offered - 1) > 2 * UNSERVED + DEVIATIONS / math.sqrt(offered * terms.seconds):
        return (
            f"the service alone did {rate:.4g} requests/s, and ${RATE_VARIABLE} asked for {offered:.4g}: let the "
            "program that sends the requests read that variable, or leave --rate out"
        )
    if max(known) > terms.slo.ms:
        return (
            f"alone the service's p{terms.slo.percentile} is {Spread.of(known).text('.3g')} ms already, above "
            f"{terms.slo.ms:g} ms"
        )
    return ""


def protect_verdict(
    plan: TrialPlan, terms: ProtectTerms, outcomes: Sequence[CaseOutcome], rows: Sequence[TrialRow], timed: bool
) -> TrialVerdict:
    """`timed` False: what the programs printed has no answer, but the way that it leads to, as a rehearsal."""
    if why := no_verdict(rows) or why_no_search(terms, outcomes):
        return TrialVerdict(Answer.UNCLEAR, f"No verdict: {why}.")
    if following(plan, outcomes) is not None:
        return TrialVerdict(Answer.UNCLEAR, "No verdict: the search has not ended.")
    cases = [case_of(plan, way) for way in found(plan, terms, outcomes)]
    held = sorted((row for row in rows if row.case in cases), key=lambda row: -job_speed(row, outcomes))
    answer, told = (Answer.HOLDS, _held(held, terms, outcomes)) if held else (Answer.FAILS, _none(terms))
    if not timed:
        told = f"No verdict: the GPU is simulated, so no time here is that of a GPU. By what was printed: {told}"
        answer = Answer.UNTIMED
    return TrialVerdict(answer, told, held[0] if held else None)


def job_speed(row: TrialRow, outcomes: Sequence[CaseOutcome]) -> float:
    """The job's speed beside the service, as a part of its speed alone."""
    alone = [window.rates[1][0] for outcome in outcomes if _is_alone(outcome, JOB) for window in outcome.windows]
    beside = row.rates[1]
    return beside.median / statistics.median(alone) if beside is not None and alone else 0.0


def _held(held: Sequence[TrialRow], terms: ProtectTerms, outcomes: Sequence[CaseOutcome]) -> str:
    best, *others = held
    windows = [window for outcome in outcomes if outcome.case == best.case for window in outcome.windows]
    service = [window for outcome in outcomes if _is_service(outcome) for window in outcome.windows]
    beside, alone = (
        Spread.of([latency for window in of if (latency := latency_of(window, terms)) is not None])
        for of in (windows, service)
    )
    also = "".join(f"; {row.case.way} holds too, and leaves it {job_speed(row, outcomes):.0%}" for row in others)
    return (
        f"The service keeps its {terms.slo} beside the job as {best.case.way}: {beside.text('.3g')} ms, alone "
        f"{alone.text('.3g')} ms, at {_rate(service):.4g} requests/s ({measured_in(best)}). The job keeps "
        f"{job_speed(best, outcomes):.0%} of its speed alone{also}."
    )


def _none(terms: ProtectTerms) -> str:
    least = ", ".join(str(ways[-1]) for ways in terms.ways())
    untried = (
        ""
        if terms.best_effort
        else " Whether it holds where the job gives way was not tried: `kubectl gpushare trial` does, in a share with "
        "spec.clients.classes."
    )
    return (
        f"The service does not keep its {terms.slo} beside the job, not even beside it as {least}: give one of the two "
        f"a GPU of its own.{untried}"
    )


def _is_found(terms: ProtectTerms) -> bool:
    return terms.rate is not None and terms.rate.percent is not None


def _says_nothing(outcomes: Sequence[CaseOutcome]) -> bool:
    single = [outcome for outcome in outcomes if outcome.case.total == 1]
    return any(outcome.ending is not Ending.MEASURED or outcome.used_gpu is False for outcome in single)


def _is_service(outcome: CaseOutcome) -> bool:
    return _is_alone(outcome, SERVICE)


def _is_alone(outcome: CaseOutcome, copies: tuple[int, int]) -> bool:
    return outcome.case == TrialCase(TrialMode.ALONE, copies)


def _rate(windows: Sequence[WindowFigures]) -> float:
    """The median of the service's, per second; 0 without windows."""
    return statistics.median(window.rates[0][0] for window in windows) if windows else 0.0
