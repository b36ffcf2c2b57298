"""What the figures of a trial say, in one sentence with its uncertainty. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpushare.kubectl.rules.trial.cases import MORE, Ending, TrialMode, counted, titled
from gpushare.kubectl.rules.trial.decision import LEAST_OF_MEAN, LONGEST_P99, WORTH, Holds, RuleParts, judge
from gpushare.kubectl.rules.trial.rows import TrialRow
from gpushare.kubectl.rules.trial.spread import Spread
from gpushare.messages.wording import count_of


class Answer(StrEnum):
    """SLOWS: more gets done, and somebody waits too long for it, or gets too little. HOLDS, FAILS: a service's
    objective beside a job.
    """

    HELPS = "helps"
    SLOWS = "slows"
    NO_GAIN = "no gain"
    UNCLEAR = "unclear"
    HOLDS = "holds"
    FAILS = "fails"
    UNTIMED = "untimed"


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """`best`: the case to run by; None where there is none to recommend."""

    answer: Answer
    sentence: str
    best: TrialRow | None = None


def verdict_of(rows: Sequence[TrialRow], timed: bool) -> TrialVerdict:
    """`timed` is False for figures whose times are not those of a GPU: they get no verdict."""
    if never := no_verdict(rows):
        return TrialVerdict(Answer.UNCLEAR, f"No verdict: {never}.")
    if not timed:
        return TrialVerdict(Answer.UNTIMED, "No verdict: the GPU is simulated, so no time here is that of a GPU.")
    shared = [row for row in rows if row.case.mode.under_mps]
    judgements = {row: judgement for row in shared if (judgement := judge(row)) is not None}
    if not judgements:
        return TrialVerdict(Answer.UNCLEAR, f"No verdict: {_nothing(shared)}.")
    if slowed := slow_alone(rows):
        return TrialVerdict(Answer.UNCLEAR, f"No verdict: {slowed}.")
    best = _best(judgements)
    answer, sentence = _judged(rows, best, judgements[best])
    return TrialVerdict(answer, sentence, best if answer is Answer.HELPS else None)


def no_verdict(rows: Sequence[TrialRow]) -> str:
    """Why a program alone says nothing about sharing a GPU, as a clause; empty where each says something."""
    alone = [row for row in rows if row.case.total == 1]
    failed = next((row for row in alone if row.ending is not Ending.MEASURED and not any(row.rates)), None)
    if failed is not None:
        return f"{_which_alone(failed)} did not work ({failed.ending.value})"
    unused = next((row for row in alone if row.used_gpu is False), None)
    if unused is not None:
        return (
            f"{_which_alone(unused)} never used the GPU: nothing of it was in the GPU's memory, or it launched nothing "
            "there; does it compute on the CPU?"
        )
    return ""


def answer_of(judgement: RuleParts) -> Answer:
    if judgement.holds is Holds.YES:
        return Answer.HELPS
    if Holds.NO in (judgement.work, judgement.mps):
        return Answer.NO_GAIN
    return Answer.SLOWS if judgement.gains is Holds.YES and judgement.holds is Holds.NO else Answer.UNCLEAR


def _judged(rows: Sequence[TrialRow], best: TrialRow, judgement: RuleParts) -> tuple[Answer, str]:
    """The answer and its sentence. Where something is not clear, the first that is not is named."""
    told, slices, answer = _told(best), _against_slices(best), answer_of(judgement)
    if answer is Answer.HELPS:
        return answer, f"Sharing helps{_whether_mps_does(best)}: {told}{slices}."
    if answer is Answer.NO_GAIN:
        if judgement.work is Holds.NO:
            return answer, f"Sharing brings no gain: {told}{slices}{_busy_alone(rows)}."
        return answer, f"MPS brings no gain, since it loses to time slices: {told}{slices}."
    if answer is Answer.SLOWS:
        return (
            answer,
            f"Sharing gets more done, at a price: {told}{slices}. A batch job may pay that, a service may not: "
            f"{_price(judgement)}.",
        )
    return answer, f"Unclear: {told}{slices}; {_open(judgement)}; measure longer or more often."


def _price(judgement: RuleParts) -> str:
    prices = []
    if judgement.latency is Holds.NO:
        prices.append(f"p99 is more than {LONGEST_P99:g} times that alone")
    if judgement.even is Holds.NO:
        prices.append(f"the slowest gets less than {LEAST_OF_MEAN:.0%} of the mean speed")
    return ", and ".join(prices)


def _open(judgement: RuleParts) -> str:
    """What the spread leaves open, the gain first."""
    if judgement.work is Holds.UNCLEAR:
        return f"the spread includes {WORTH:g}, below which sharing is not worth it"
    if judgement.mps is Holds.UNCLEAR:
        return "MPS may lose to time slices"
    if judgement.latency is Holds.UNCLEAR:
        return f"the spread of p99 includes {LONGEST_P99:g} times that alone, above which a service waits too long"
    return f"the slowest may get less than {LEAST_OF_MEAN:.0%} of the mean speed"


def _whether_mps_does(best: TrialRow) -> str:
    """A clause where MPS did not clearly more than time slices; empty where it did, or these were not measured."""
    ratio = best.of_slices
    if ratio is None or (ratio.least >= 1.0 and ratio.largest >= MORE):
        return ""
    return ", and needs no MPS" if ratio.largest < MORE else "; whether MPS helps more than time slices is not clear"


def _busy_alone(rows: Sequence[TrialRow]) -> str:
    """How much of the time each program alone keeps the GPU busy, as a clause; empty where that is not known."""
    alone = [(row, row.busy_percent) for row in rows if row.case.mode is TrialMode.ALONE]
    known = [
        (counted(row.case) if len(row.case.copies) > 1 else "one", busy) for row, busy in alone if busy is not None
    ]
    return "".join(f"; {who} alone keeps the GPU busy {busy.median:.0f} % of the time" for who, busy in known)


def _best(judgements: dict[TrialRow, RuleParts]) -> TrialRow:
    """The fewest copies whose gain nothing exceeds by more than a little, among those that pass the rule; where none
    does, among those that may, then among those that get more done; of equal numbers the larger gain.
    """
    for passes in (_passes, _may_pass, _gains, _any):
        if candidates := [row for row, judgement in judgements.items() if passes(judgement)]:
            break
    gains = {row: row.gain.median for row in candidates if row.gain is not None}
    most = max(gains.values())
    enough = [row for row in gains if gains[row] * MORE >= most]
    return min(enough, key=lambda row: (row.case.total, -gains[row]))


def _passes(judgement: RuleParts) -> bool:
    return judgement.holds is Holds.YES


def _may_pass(judgement: RuleParts) -> bool:
    return judgement.holds is not Holds.NO


def _gains(judgement: RuleParts) -> bool:
    return judgement.gains is Holds.YES


def _any(judgement: RuleParts) -> bool:
    return True


def _told(row: TrialRow) -> str:
    """What was done, at what speed and after what wait."""
    gain = row.gain
    assert gain is not None  # noqa: S101 - a row without one has no judgement
    spread = (
        "measured once, so its spread is not known"
        if row.samples == 1
        else f"{gain.least:.2f} to {gain.largest:.2f} in {measured_in(row)}{_more_than_all(row)}"
    )
    what = f"{counted(row.case)} {titled(row.case)}"
    verb = "does" if len(row.case.copies) == 2 else "do"
    return f"{what} {verb} {_work(row, gain)} ({spread}){_each(row)}, {_p99(row)}"


def _each(row: TrialRow) -> str:
    """The speed of each copy and of the slowest; of several programs the slowest alone, against itself alone."""
    slowest = "" if row.slowest is None else f"the slowest at {row.slowest.median:.0%}"
    if len(row.case.copies) > 1:
        return f", {slowest} of its speed alone" if slowest else ""
    return "" if row.speed is None else f", each at {row.speed.median:.0%} of its speed alone, {slowest}"


def _p99(row: TrialRow) -> str:
    return "p99 not measured" if row.p99_times is None else f"p99 {row.p99_times.text()} times that alone"


def _more_than_all(row: TrialRow) -> str:
    return f", where more than {row.case.total} means that one alone was slow" if is_above(row) else ""


def is_above(row: TrialRow) -> bool:
    """Whether copies did more than their number allows in any window: what they are compared with was slow in some."""
    return row.gain is not None and row.gain.largest > MORE * row.case.total


def _work(row: TrialRow, gain: Spread) -> str:
    if len(row.case.copies) > 1:
        return f"the work of {gain.median:.2f} GPUs that each run one of the programs"
    return f"{gain.median:.2f} times the work of one alone"


def measured_in(row: TrialRow) -> str:
    """Whether the spread is of windows or of runs. Windows of one run lie closer together than runs."""
    if row.samples == row.runs:
        return count_of(row.runs, "run")
    return f"{row.samples} windows of {'one run' if row.runs == 1 else f'{row.runs} runs'}"


def _against_slices(row: TrialRow) -> str:
    ratio = row.of_slices
    return "" if ratio is None else f", and {ratio.text()} times that of time slices"


def slow_alone(rows: Sequence[TrialRow]) -> str:
    """A clause where copies were faster beside each other than alone, else empty.

    No way of sharing can do that, so the figure alone is wrong, and every row is compared with it.
    """
    over = [(row, row.gain) for row in rows if row.gain is not None and row.gain.median > row.case.total * MORE]
    if not over:
        return ""
    row, gain = max(over, key=lambda candidate: candidate[1].median / candidate[0].case.total)
    return (
        f"{counted(row.case)} {titled(row.case)} did {_work(row, gain)}, and sharing brings {row.case.total} at "
        f"most: what ran alone was slower than beside others, so every figure against it is too large"
        f"{_beside_slices(rows)}. "
        "Measure again on a quiet host"
    )


def _beside_slices(rows: Sequence[TrialRow]) -> str:
    """What the most copies of one program did under MPS against time slices, which no figure of one alone can falsify.
    Of several programs that quotient adds parts of what each did alone.
    """
    known = [
        (row, row.of_slices)
        for row in rows
        if row.case.mode.under_mps and row.of_slices is not None and len(row.case.copies) == 1
    ]
    if not known:
        return ""
    row, ratio = max(known, key=lambda candidate: candidate[0].case.total)
    return f". {counted(row.case)} {titled(row.case)} did {ratio.text()} times the work of time slices"


def _which_alone(row: TrialRow) -> str:
    return f"{counted(row.case)}, alone," if len(row.case.copies) > 1 else "one copy alone"


def _nothing(shared: Sequence[TrialRow]) -> str:
    if not shared:
        return "no copies ran beside each other under MPS"
    first = shared[0]
    if first.ending is Ending.NO_MEMORY:
        return f"{counted(first.case)} {'does' if len(first.case.copies) == 2 else 'do'} not fit into the GPU's memory"
    if first.ending is Ending.NO_ROOM:
        return f"the share has no room for {counted(first.case)}"
    return f"{counted(first.case)} {titled(first.case)} did not work"
