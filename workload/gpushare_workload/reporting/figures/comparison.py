"""The picture of a comparison: the work of all copies against their number, and each program's latency where known."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpushare.kubectl.rules.trial.cases import TITLES, TrialMode
from gpushare.kubectl.rules.trial.rows import TrialRow
from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.reporting.figures.panels import points, styled
from gpushare_workload.reporting.style import LINE_STYLES, SOFT
from gpushare_workload.results.comparison import Comparison, titled

STYLES = {
    TrialMode.SLICES: LINE_STYLES[SharingMode.TIME_SLICING],
    TrialMode.MPS: LINE_STYLES[SharingMode.MPS],
    TrialMode.CAPPED: LINE_STYLES[SharingMode.MPS_EQUAL_CAPS],
    TrialMode.SLOTS: LINE_STYLES[SharingMode.MPS],
}
"""The styles of the benchmark's report for the same modes. Slots, which are MPS, are never beside the other modes."""
DPI = 160


def draw(comparison: Comparison) -> Figure | None:
    """The picture; None for a search of what may run beside a service, for a comparison without times, or without two
    copies that ran.
    """
    record, rows = comparison.record, [row for row in comparison.rows if row.gain is not None]
    if record.plan.protect is not None or not record.timed or not any(row.case.mode in STYLES for row in rows):
        return None
    programs = range(len(rows[0].case.copies))
    several = len(programs) > 1
    latency = [place for place in programs if any(row.p99_ms[place] is not None for row in rows)]
    with styled():
        figure = Figure(figsize=(4.6 + 3.8 * len(latency), 3.6), layout="constrained")
        figure.suptitle(titled(comparison.record.programs), fontsize=9, color=SOFT, x=0.01, ha="left")
        panels = figure.subplots(1, 1 + len(latency), squeeze=False)[0]
        _panel(
            panels[0], rows, [row.gain for row in rows], "work, × each alone" if several else "work, × one copy alone"
        )
        panels[0].axhline(1.0, color=SOFT, linewidth=1.0, linestyle=":")
        for panel, place in zip(panels[1:], latency, strict=True):
            who = f"program {place + 1}" if several else "the program"
            _panel(panel, rows, [row.p99_ms[place] for row in rows], f"p99 of {who}, ms")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=3)
    return figure


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)


def _panel(panel: Axes, rows: Sequence[TrialRow], figures: Sequence[Spread | None], label: str) -> None:
    spreads = [(row.case, spread) for row, spread in zip(rows, figures, strict=True) if spread is not None]
    alone = [(1, spread) for case, spread in spreads if case.mode is TrialMode.ALONE][:1]
    counts = {1}
    for mode, style in STYLES.items():
        of_mode = [(case.total, spread) for case, spread in spreads if case.mode is mode]
        if not of_mode:
            continue
        line = sorted([*alone, *of_mode], key=lambda point: point[0])
        counts |= {count for count, _ in line}
        panel.errorbar(*points(line), capsize=2.5, label=TITLES[mode], **style.line())
    panel.set_xticks(sorted(counts), [str(count) for count in sorted(counts)])
    panel.set_ylim(bottom=0)
    panel.set_xlabel("copies")
    panel.set_ylabel(label)
