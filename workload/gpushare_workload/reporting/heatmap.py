"""The heat map of `mix`: the slowdown of each kind of program beside each other kind."""

import statistics
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from gpushare_workload.reporting.files import Pair
from gpushare_workload.reporting.panels import styled
from gpushare_workload.reporting.style import PAPER, TEXT

DARK_FROM = 0.55
"""Fraction of the range of colours from which on white text is easier to read than dark text."""
BLUES = LinearSegmentedColormap.from_list("gpushare", ["#eef4fa", "#9cc6e4", "#3f8dc0", "#0b4a7a"])
LEAST_RANGE = 2.0
"""The range of colours covers slowdowns from 1 to at least this, so that small slowdowns do not look large."""


def slowdowns(pairs: Sequence[Pair]) -> tuple[list[str], dict[tuple[str, str], float]]:
    """The kinds in order, and the slowdown of (kind, beside): the median if several files contain it."""
    found: dict[tuple[str, str], list[float]] = {}
    for pair in pairs:
        if pair.beside is not None:
            found.setdefault((pair.kind, pair.beside), []).append(pair.slowdown)
    return list(dict.fromkeys(kind for kind, _ in found)), {key: statistics.median(it) for key, it in found.items()}


def heatmap(pairs: Sequence[Pair]) -> Figure | None:
    """None without pairs."""
    kinds, found = slowdowns(pairs)
    if not kinds:
        return None
    table = np.array([[found.get((kind, beside), np.nan) for beside in kinds] for kind in kinds])
    most = max(LEAST_RANGE, float(np.nanmax(table)))
    with styled():
        figure = Figure(figsize=(1.3 * len(kinds) + 2.2, 0.95 * len(kinds) + 1.1), layout="constrained")
        panel = figure.add_subplot()
        image = panel.imshow(table, cmap=BLUES, vmin=1.0, vmax=most, aspect="auto")
        for (line, column), value in np.ndenumerate(table):
            dark = (value - 1.0) / (most - 1.0) >= DARK_FROM
            text = "–" if np.isnan(value) else f"{value:.2f}×"
            panel.text(
                column, line, text, ha="center", va="center", color=PAPER if dark else TEXT, size=11, weight="bold"
            )
        panel.set_xticks(range(len(kinds)), [f"beside {kind}" for kind in kinds], color=TEXT)
        panel.set_yticks(range(len(kinds)), kinds, color=TEXT)
        panel.xaxis.tick_top()
        panel.grid(visible=False)
        panel.spines[:].set_visible(False)
        panel.set_xticks(np.arange(len(kinds) + 1) - 0.5, minor=True)
        panel.set_yticks(np.arange(len(kinds) + 1) - 0.5, minor=True)
        panel.grid(which="minor", color=PAPER, linewidth=3)
        bar = figure.colorbar(image, ax=panel, shrink=0.9, aspect=18)
        bar.set_label("times as long as alone")
        bar.outline.set_visible(False)
        return figure
