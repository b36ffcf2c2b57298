"""The texts of the page beside the plots: headlines, tables, the environment. Pure: values in, rows of text out."""

from collections.abc import Sequence
from typing import Any

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.backend.work import Grid, LoadKind
from gpushare_workload.reporting.selection import by_depth, times
from gpushare_workload.reporting.style import GRIDS, KINDS, MODES, depth_text, setting_text
from gpushare_workload.results.document import Document
from gpushare_workload.results.files import Overlap, Pair
from gpushare_workload.results.summary import Row

HEAD = (
    "Load", "Depth", "Clients", "Mode", "Threads", "Kernels/s", "Work/s", "× time-slicing", "× one client",
    "Jain", "p50 µs", "p90 µs", "p99 µs", "worst client’s p99 µs", "MiB each", "GPU busy", "Repeats",
)  # fmt: skip
SPEED = (
    "Kernels/s",
    "Work/s",
    "× time-slicing",
    "× one client",
    "Jain",
    "p50 µs",
    "p90 µs",
    "p99 µs",
    "worst client’s p99 µs",
)
"""Columns that are left out for a simulated GPU."""


def headlines(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """A figure in large type, and what it is, for each load: the gain of MPS over time slices, from the shallowest to
    the deepest depth.
    """
    headlines_of_loads = []
    for load, each in by_depth(rows).items():
        first, last = each[0], each[-1]
        gains = [times(row.of_time_slicing.median) for row in (first, last) if row.of_time_slicing]
        figure = gains[0] if first is last else f"{gains[0]} → {gains[1]}"
        depths = depth_text(first.case.load) + ("" if first is last else f" → {last.case.load.depth}")
        text = (
            f"{KINDS[load.kind].lower()}, {GRIDS[load.grid]}, {first.case.clients} clients, {depths}: "
            "MPS against time slices"
        )
        alone = [times(row.of_one_client.median) for row in (first, last) if row.of_one_client]
        if alone:
            text += f"; against one client alone {' → '.join(dict.fromkeys(alone))}"
        headlines_of_loads.append((figure, text))
    return headlines_of_loads


def figures(rows: Sequence[Row], simulated: bool) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(head, lines), without the columns of speed for a simulated GPU."""
    kept = [place for place, name in enumerate(HEAD) if not simulated or name not in SPEED]
    lines = [_line(row) for row in rows]
    return tuple(HEAD[place] for place in kept), [tuple(line[place] for place in kept) for line in lines]


def _line(row: Row) -> tuple[str, ...]:
    case = row.case
    return (
        f"{KINDS[case.load.kind]}, {GRIDS[case.load.grid]}",
        depth_text(case.load).removeprefix("depth "),
        str(case.clients),
        MODES[case.mode],
        "–" if case.threads is None else f"{case.threads:.4g} %",
        _spread(row.total, ",.0f"),
        _work(row),
        _spread(row.of_time_slicing, ".2f"),
        _spread(row.of_one_client, ".2f"),
        _spread(row.fairness, ".3f"),
        *(f"{row.percentile_us(percent):,.0f}" for percent in (50, 90, 99)),
        f"{row.worst_p99_us:,.0f}",
        "–" if row.memory_mib is None else f"{row.memory_mib.median:,.0f}",
        "–" if row.busy_percent is None else f"{row.busy_percent.median:.0f} %",
        str(row.repeats),
    )


def _work(row: Row) -> str:
    """What the kernels do together: a load that is bound by memory moves a large part of the GPU's bandwidth."""
    if row.case.load.kind is LoadKind.COMPUTE:
        return f"{row.gflops / 1000:.2f} TFLOP/s"
    return f"{row.gigabytes_per_second:,.0f} GB/s"


def _spread(spread: Spread | None, form: str) -> str:
    """The median, and the extremes if they differ from it in this form."""
    return "–" if spread is None else spread.text(form)


def pairs(measured: Sequence[Pair]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    head = ("Programs", "Shared by", "Combined throughput", "Verdict")
    return head, [
        (" + ".join(pair.kinds), setting_text(pair.setting), _spread(pair.combined, ".2f"), pair.verdict)
        for pair in measured
    ]


def overlaps(measured: Sequence[Overlap]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    head = (
        "Kernels", "Shared by", "Processes", "Kernels/s together", "Processes at once", "Any running",
        "SMs of each", "SMs of several",
    )  # fmt: skip
    return head, [
        (
            f"{GRIDS[Grid(overlap.grid)]}, depth {overlap.depth}",
            setting_text(overlap.setting),
            str(overlap.processes),
            _spread(overlap.rate, ",.0f"),
            _spread(overlap.at_once, ".2f"),
            "–" if overlap.running_percent is None else f"{_spread(overlap.running_percent, '.0f')} %",
            ", ".join(str(number) for number in overlap.sms_of_each),
            str(overlap.sms_of_several),
        )
        for overlap in measured
    ]


def environment(documents: Sequence[Document]) -> list[tuple[str, str]]:
    """(name, value) of everything in the files' environments; all values if the files differ."""
    values: dict[str, dict[str, None]] = {}
    for document in documents:
        for name, value in _flat("", {"backend": document.backend, **document.environment}):
            values.setdefault(name, {})[value] = None
    return [(name, ", ".join(each)) for name, each in values.items()]


def _flat(prefix: str, value: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    for name, part in value.items():
        if isinstance(part, dict):
            lines += _flat(f"{prefix}{name} ", part)
        elif part is not None:
            lines.append((f"{prefix}{name}".replace("_", " "), f"{part:.4g}" if isinstance(part, float) else str(part)))
    return lines


def cautions(documents: Sequence[Document], rows: Sequence[Row]) -> list[str]:
    """What a reader must know about the figures: one sentence each."""
    sentences = [
        f"A benchmark did not run to its end ({document.ended}): its figures are incomplete."
        for document in documents
        if document.ended
    ]
    refused = [run.refused for document in documents for run in document.runs if run.refused]
    if refused:
        sentences.append(f"{len(refused)} runs are left out, since their figures cannot be true: {refused[0]}.")
    warned = dict.fromkeys(warning for row in rows for warning in row.warnings)
    return [*sentences, *(f"While measuring: {warning}." for warning in warned)]
