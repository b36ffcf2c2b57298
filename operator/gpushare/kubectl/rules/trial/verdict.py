"""What the figures of a trial say, in one sentence with its uncertainty, and the GpuShare that follows. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpushare.api import names
from gpushare.api.quantity import LEAST_MEMORY_MIB
from gpushare.kubectl.rules.trial.cases import MORE, TITLES, Ending, TrialMode, counted
from gpushare.kubectl.rules.trial.rows import TrialRow
from gpushare.kubectl.rules.trial.spread import Spread

WORTH = 1.1
"""A gain below this is not worth a share."""
HEADROOM = 1.1
"""The recommended memory, as a multiple of the highest that was seen."""
MEMORY_STEP_MIB = 256
LEAST_UNCAPPED_MIB = 768
"""Granted to a client with all threads, whose CUDA context takes 520 MiB: admission refuses less than that."""
RESERVE_MIB = 1024
"""Part of the GPU's memory that is left for MPS itself."""


class Answer(StrEnum):
    HELPS = "helps"
    NO_GAIN = "no gain"
    UNCLEAR = "unclear"
    UNTIMED = "untimed"


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """`best`: the case to run by; None where there is none to recommend."""

    answer: Answer
    sentence: str
    best: TrialRow | None = None


def verdict_of(rows: Sequence[TrialRow], timed: bool) -> TrialVerdict:
    """`timed` is False for figures whose times are not those of a GPU: they get no verdict."""
    failed = next((row for row in rows if row.case.mode is TrialMode.ALONE and row.ending is not Ending.MEASURED), None)
    if failed is not None and not any(failed.rates):
        return TrialVerdict(Answer.UNCLEAR, f"No verdict: {_which_alone(failed)} did not work ({failed.ending.value}).")
    if not timed:
        return TrialVerdict(Answer.UNTIMED, "No verdict: the GPU is simulated, so no time here is that of a GPU.")
    shared = [row for row in rows if row.case.mode.under_mps]
    by_row = {row: row.gain for row in shared if row.gain is not None}
    if not by_row:
        return TrialVerdict(Answer.UNCLEAR, f"No verdict: {_nothing(shared)}.")
    if slowed := slow_alone(rows):
        return TrialVerdict(Answer.UNCLEAR, f"No verdict: {slowed}.")
    best, gain = _best(by_row)
    answer, sentence = _judged(rows, best, gain)
    return TrialVerdict(answer, sentence, best if answer is Answer.HELPS else None)


def _judged(rows: Sequence[TrialRow], best: TrialRow, gain: Spread) -> tuple[Answer, str]:
    told = _told(best, gain)
    if gain.least >= WORTH:
        return Answer.HELPS, f"Sharing helps{_whether_mps_does(best)}: {told}{_against_slices(best)}."
    if gain.largest < WORTH:
        return Answer.NO_GAIN, f"Sharing brings no gain: {told}{_against_slices(best)}{_busy_alone(rows)}."
    return (
        Answer.UNCLEAR,
        f"Unclear: {told}, and the spread includes {WORTH:g}, below which sharing is not worth it; "
        "measure longer or more often.",
    )


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


def _best(by_row: dict[TrialRow, Spread]) -> tuple[TrialRow, Spread]:
    """The fewest copies whose gain nothing exceeds by more than a little; of equal numbers the larger gain."""
    most = max(gain.median for gain in by_row.values())
    enough = [(row, gain) for row, gain in by_row.items() if gain.median * MORE >= most]
    return min(enough, key=lambda candidate: (candidate[0].case.total, -candidate[1].median))


def _told(row: TrialRow, gain: Spread) -> str:
    spread = (
        "measured once, so its spread is not known"
        if row.samples == 1
        else f"{gain.least:.2f} to {gain.largest:.2f} in {_measured(row)}{_more_than_all(row)}"
    )
    what = f"{counted(row.case)} {TITLES[row.case.mode]}"
    verb = "does" if len(row.case.copies) == 2 else "do"
    speed = (
        "" if row.speed is None or len(row.case.copies) > 1 else f", each at {row.speed.median:.0%} of its speed alone"
    )
    return f"{what} {verb} {_work(row, gain)} ({spread}){speed}"


def _more_than_all(row: TrialRow) -> str:
    return f", where more than {row.case.total} means that one alone was slow" if is_above(row) else ""


def is_above(row: TrialRow) -> bool:
    """Whether copies did more than their number allows in any window: what they are compared with was slow in some."""
    return row.gain is not None and row.gain.largest > MORE * row.case.total


def _work(row: TrialRow, gain: Spread) -> str:
    if len(row.case.copies) > 1:
        return f"the work of {gain.median:.2f} GPUs that each run one of the programs"
    return f"{gain.median:.2f} times the work of one alone"


def _measured(row: TrialRow) -> str:
    """Whether the spread is of windows or of runs. Windows of one run lie closer together than runs."""
    if row.samples == row.runs:
        return f"{row.runs} runs"
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
        f"{counted(row.case)} {TITLES[row.case.mode]} did {_work(row, gain)}, and sharing brings {row.case.total} at "
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
    return f". {counted(row.case)} {TITLES[row.case.mode]} did {ratio.text()} times the work of time slices"


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
    return f"{counted(first.case)} {TITLES[first.case.mode]} did not work"


def memory_for(most_mib: int) -> int:
    """MiB to grant a client that was seen with `most_mib` at most: a tenth more, in whole steps."""
    steps = -(-int(most_mib * HEADROOM) // MEMORY_STEP_MIB)
    return max(LEAST_MEMORY_MIB, steps * MEMORY_STEP_MIB)


def check_share_name(option: str, name: str) -> None:
    """Raises ValueError naming the option for a name that no GpuShare can have."""
    if not re.match(names.SHARE_NAME_PATTERN, name):
        raise ValueError(
            f"{option} {name!r}: a GpuShare's name begins with a letter and has at most 40 of a-z, 0-9 and -"
        )


def share_of(
    verdict: TrialVerdict,
    rows: Sequence[TrialRow],
    name: str,
    product: str,
    gpu_mib: int | None,
    cap: float | None = None,
) -> dict[str, Any] | None:
    """The GpuShare to apply; None where the verdict recommends none, or the memory of the copies is not known.

    Each client gets the most memory that a copy was seen with and a little more, as far as the GPU has it. `cap`:
    percent of the SMs of each copy in mode CAPPED, if the GPU was not divided equally.
    """
    best = verdict.best
    if best is None or best.memory_mib is None or gpu_mib is None:
        return None
    usable = gpu_mib - RESERVE_MIB
    alone = [row.memory_mib for row in rows if row.case.mode is TrialMode.ALONE and row.memory_mib is not None]
    wanted = memory_for(max(best.memory_mib, *alone, 0))
    capped = best.case.mode is TrialMode.CAPPED
    least = LEAST_MEMORY_MIB if capped else LEAST_UNCAPPED_MIB
    memory = max(least, min(wanted, usable // best.case.total))
    clients = min(best.case.total, usable // memory)
    if clients < 1:
        return None
    threads = max(1, int(cap or 100 / best.case.total)) if capped else 100
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GpuShare",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"products": [product]},
            "clients": {
                "perGpu": clients,
                "threads": {"default": threads, "max": threads},
                "memory": {"default": f"{memory}Mi"},
            },
        },
    }
