"""The pairs of `mix`: what two programs get done together, in parts of what each gets done alone."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from gpushare_workload.reporting.figures.panels import styled
from gpushare_workload.reporting.style import PAPER, SOFT, TEXT, setting_colour, setting_text
from gpushare_workload.results.files import Pair, Setting

BAR, GAP, HEAD = 0.2, 0.22, 1.15
"""Inches: of a bar, between two pairs, and of legend and axis."""


def settings_of(pairs: Sequence[Pair]) -> list[Setting]:
    """Time slices first, then from the loosest limit to the tightest."""
    return sorted({pair.setting for pair in pairs}, key=lambda setting: (setting.sharing == "mps", -setting.threads))


def pairs_drawn(pairs: Sequence[Pair]) -> Figure | None:
    """A bar for each pair and setting; the last result of a pair that several files contain."""
    if not pairs:
        return None
    settings, names = settings_of(pairs), list(dict.fromkeys(pair.kinds for pair in pairs))
    by_setting = {(pair.kinds, pair.setting): pair for pair in pairs}
    step = BAR * len(settings) + GAP
    with styled():
        figure = Figure(figsize=(9.0, HEAD + step * len(names)), layout="constrained")
        panel = figure.add_subplot()
        for number, setting in enumerate(settings):
            for place, kinds in enumerate(names):
                if (pair := by_setting.get((kinds, setting))) is None:
                    continue
                at, spread = place * step + number * BAR, pair.combined
                label = setting_text(setting) if not place else None
                panel.barh(at, spread.median, height=0.84 * BAR, color=setting_colour(setting), label=label)
                panel.plot([spread.least, spread.largest], [at, at], color=TEXT, linewidth=1.0)
                end = (max(spread.largest, spread.median), at)
                panel.annotate(
                    f"{spread.median:.2f}", end, (4, 0), textcoords="offset points", va="center", fontsize=8,
                    bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6},
                )  # fmt: skip
        middles = [place * step + (len(settings) - 1) * BAR / 2 for place in range(len(names))]
        panel.set_yticks(middles, [" + ".join(kinds) for kinds in names], color=TEXT)
        panel.invert_yaxis()
        panel.axvline(1.0, color=SOFT, linewidth=1.2, zorder=0.6)
        panel.axvline(2.0, color=SOFT, linewidth=1.2, linestyle=":", zorder=0.6)
        panel.set_xlim(0, max(2.15, 1.12 * max(pair.combined.largest for pair in pairs)))
        panel.set_xlabel("combined throughput: 1 is what one program gets alone, 2 is both as if alone")
        panel.grid(visible=False, axis="y")
        figure.legend(loc="outside upper left", ncols=len(settings), columnspacing=1.5)
        return figure
