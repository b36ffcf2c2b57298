"""Two capped clients in each other's way, from measurements/results/h100/capped-pair.json, as tables."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpushare.kubectl.rules.trial.spread import Spread
from measurements.gpu.mps.capped_pair import DEPTHS, WORK
from tests.page_tables import head_of, line_of

FILE = "h100/capped-pair.json"
BLOCKS, CAP, UNCAPPED = (60, 64, 66, 132), "50", "100"
SMS = 66
"""A client with 50 % has so many. A kernel with more blocks has two on some SM even alone."""
MEDIAN = 2
"""The place of the median among the percentiles that a run has: 0, 10, 50, 90, 100."""
FEW = 10
"""The number of slow kernels up to which the table does not say which part of them had two blocks on one SM."""


def capped_pair_tables(results: Path) -> dict[str, Iterator[str]]:
    """One for each depth, by its name on the page. KeyError: it was not measured."""
    result = json.loads((results / FILE).read_text())
    return {f"capped_pair_{depth}": _table(result, depth) for depth in DEPTHS}


def _table(result: Mapping[str, Any], depth: int) -> Iterator[str]:
    yield from head_of("blocks of", "blocks", "without caps", "50 % each", "slow kernels")
    for kind in WORK:
        for blocks in BLOCKS:
            case = f"{blocks} blocks of {kind}, depth {depth}"
            cells = [_longer([run[case] for run in result["runs"][cap]]) for cap in (UNCAPPED, CAP)]
            cells.append(_slow([run[case] for run in result["runs"][CAP]]) if blocks <= SMS else "–")
            yield line_of(kind, str(blocks), *cells)


def _longer(runs: Sequence[Mapping[str, Any]]) -> str:
    """How long a kernel takes on average, divided by how long it takes alone. The kernels that run at one moment,
    divided by those that end in a second, give the duration of one in seconds (Little's law).
    """
    seconds = [run["overlap"] / sum(run["together"]) for run in runs]
    alone = [run["kernel_ns_alone"][MEDIAN] / 1e9 for run in runs]
    return Spread.of([duration / other for duration, other in zip(seconds, alone, strict=True)]).text()


def _slow(runs: Sequence[Mapping[str, Any]]) -> str:
    """Kernels with a slow block, and those of them with two blocks on one SM, over all runs."""
    counted, slow, own = (
        sum(run[f"{name}_together"] for run in runs)
        for name in ("counted", "with_slow_blocks", "with_slow_blocks_and_two_on_one_sm")
    )
    return f"{100 * slow / counted:.0f} %" + (f" ({100 * own / slow:.0f} %)" if slow > FEW else "")
