"""The timeline of `overlap`: when the kernels of each process ran, time slices above MPS."""

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from gpushare_workload.reporting.figures.panels import styled
from gpushare_workload.reporting.style import SOFT, TEXT, process_colour, setting_text
from gpushare_workload.results.files import Overlap, Setting, Timeline

LANE, HEAD, BETWEEN = 0.26, 0.55, 0.62
"""Inches: of a process, of the axis, and of each panel's title."""
SHOWN_US = 1500.0


def timeline(timelines: Sequence[Timeline], overlaps: Sequence[Overlap]) -> Figure | None:
    """One panel for each setting of one comparison: that of the most processes with time slices and MPS."""
    shown = _shown(timelines)
    if not shown:
        return None
    height = HEAD + sum(BETWEEN + LANE * drawn.processes for drawn in shown)
    with styled():
        figure = Figure(figsize=(10.0, height), layout="constrained")
        panels = figure.subplots(
            len(shown), 1, sharex=True, squeeze=False, height_ratios=[drawn.processes + 0.5 for drawn in shown]
        )[:, 0]
        for panel, drawn in zip(panels, shown, strict=True):
            for index in range(drawn.processes):
                bars = [(start, end - start) for process, start, end in drawn.pieces if process == index]
                panel.broken_barh(bars, (index - 0.36, 0.72), facecolors=process_colour(index), linewidth=0)
            panel.set_yticks(
                range(drawn.processes), [f"process {index + 1}" for index in range(drawn.processes)], color=TEXT
            )
            panel.set_ylim(drawn.processes - 0.4, -0.6)
            panel.grid(visible=False, axis="y")
            panel.set_title(_title(drawn, overlaps))
            panel.set_xlim(0, SHOWN_US)
        panels[-1].set_xlabel("µs, by the GPU's own clock", color=SOFT)
        return figure


def _shown(timelines: Sequence[Timeline]) -> list[Timeline]:
    """Uncapped timelines that differ in nothing but the sharing; of several such sets the one with most processes."""
    sets: dict[Timeline, dict[str, Timeline]] = {}
    for candidate in timelines:
        if candidate.setting.threads == 100 and candidate.pieces:
            rest = replace(candidate, setting=replace(candidate.setting, sharing=""), pieces=())
            sets.setdefault(rest, {})[candidate.setting.sharing] = candidate
    if not sets:
        return []
    best = max(sets, key=lambda shared: (len(sets[shared]), shared.processes))
    return [sets[best][sharing] for sharing in ("time-slicing", "mps") if sharing in sets[best]]


def _title(drawn: Timeline, overlaps: Sequence[Overlap]) -> str:
    measured = [overlap for overlap in overlaps if _key(overlap) == _key(drawn)]
    if not measured:
        return setting_text(drawn.setting)
    last = measured[-1]
    return (
        f"{setting_text(drawn.setting)}: {last.at_once.median:.2f} processes at once, "
        f"{last.rate.median:,.0f} kernels per second together"
    )


def _key(measured: Timeline | Overlap) -> tuple[Setting, str, int, int]:
    return measured.setting, measured.grid, measured.depth, measured.processes
