"""Whether a load should share a GPU, by both ratios: MPS against time slices, and against one client alone. Pure.

Against time slices alone a gain is not enough: MPS can be far better than time slices, and yet get no more done than
one program after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.reporting.selection import by_depth
from gpushare_workload.reporting.style import GRIDS, KINDS
from gpushare_workload.results.summary import Row

CLEARLY, LITTLE, LESS = 1.3, 1.05, 0.95
"""Gains from which on sharing pays clearly, above which it pays a little, and below which it costs."""

HEAD = ("Load", "Verdict", "Clients", "Depth", "× time slices", "× one client alone")
WORDS = 2
"""The first columns of HEAD, which are of a load; the others are of one of its depths."""


class Gain(IntEnum):
    """How much more gets done, in this order."""

    LESS = 0
    SAME = 1
    LITTLE = 2
    CLEAR = 3


Ratios = tuple[Spread, Spread | None]
"""The throughput under MPS at one depth as multiples of that in time slices, and of one client's alone; None where that
was not measured."""


@dataclass(frozen=True, slots=True)
class LoadVerdict:
    """A load, its verdict, and a line of figures for each end of its depths."""

    load: str
    verdict: str
    lines: tuple[tuple[str, ...], ...]


ALONE = {
    Gain.CLEAR: "Programs that share{where} get clearly more done than one after the other.",
    Gain.LITTLE: "Sharing gets little more done than one program after the other.",
    Gain.SAME: "Sharing gets no more done than one program after the other.",
    Gain.LESS: "Sharing gets less done than one program after the other.",
}
UNKNOWN = "One client alone was not measured, so one program after the other may do as well."
SLICES = {
    Gain.CLEAR: "Programs that must run at once{where} get clearly more done under MPS than in time slices.",
    Gain.LITTLE: "Programs that must run at once get a little more done under MPS than in time slices.",
    Gain.SAME: "Time slices do as well as MPS.",
    Gain.LESS: "Time slices do better than MPS.",
}


def gain(ratio: Spread) -> Gain:
    """What every repeat shows: a gain by the least of them, a loss by the largest."""
    if ratio.least >= CLEARLY:
        return Gain.CLEAR
    if ratio.least > LITTLE:
        return Gain.LITTLE
    return Gain.LESS if ratio.largest < LESS else Gain.SAME


def verdict(depths: Sequence[Ratios]) -> str:
    """One or two sentences; from the shallowest depth to the deepest.

    Sharing pays where MPS gets clearly more done than both. Where it pays nowhere, each ratio has its own sentence.
    """
    slices = [gain(of_slices) for of_slices, _ in depths]
    alone = [gain(of_alone) for _, of_alone in depths if of_alone is not None]
    if len(alone) < len(depths):
        return f"{_sentence(SLICES, slices)} {UNKNOWN}"
    both = [min(pair) for pair in zip(slices, alone, strict=True)]
    if all(each is Gain.CLEAR for each in both):
        return "Share: it pays at every depth."
    if Gain.CLEAR in both:
        return f"Share, if programs wait {_when(both)}."
    return f"{_sentence(ALONE, alone)} {_sentence(SLICES, slices)}"


def _sentence(sentences: dict[Gain, str], gains: Sequence[Gain]) -> str:
    """The verdict by the best depth; `where` says at which depth a gain is clear, if not at all."""
    where = "" if all(gain is Gain.CLEAR for gain in gains) else f" and wait {_when(gains)}"
    return sentences[max(gains)].format(where=where)


def _when(gains: Sequence[Gain]) -> str:
    """A program of a shallow depth waits for the GPU often."""
    return "often" if gains[0] is Gain.CLEAR else "seldom"


def verdicts(rows: Sequence[Row]) -> list[LoadVerdict]:
    """Judged by the shallowest and the deepest depth of each load."""
    load_verdicts = []
    for load, each in by_depth(rows).items():
        ends = [(row, row.of_time_slicing) for row in dict.fromkeys((each[0], each[-1]))]
        ratios = [(row, (slices, row.of_one_client)) for row, slices in ends if slices is not None]
        load_verdicts.append(
            LoadVerdict(
                f"{KINDS[load.kind]}, {GRIDS[load.grid]}",
                verdict([ratio for _, ratio in ratios]),
                tuple(_line(row, ratio) for row, ratio in ratios),
            )
        )
    return load_verdicts


def _line(row: Row, ratios: Ratios) -> tuple[str, ...]:
    slices, alone = ratios
    told = "–" if alone is None else alone.text(".2f")
    return (str(row.case.clients), str(row.case.load.depth), slices.text(".2f"), told)
