"""Puts the page together: which sections there are, and in which order."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from gpushare_workload.bench.histogram import RELATIVE_ERROR
from gpushare_workload.bench.summary import Row, rows
from gpushare_workload.reporting import page, plots, words
from gpushare_workload.reporting.files import Collected
from gpushare_workload.reporting.gains import gains
from gpushare_workload.reporting.heatmap import heatmap
from gpushare_workload.reporting.page import Section

TITLES = {
    "gains": (
        "Against time-slicing",
        "Throughput of all clients together, as a multiple of what time-slicing reaches with as many clients. The thin "
        "line spans the repeats.",
    ),
    "throughput": (
        "Throughput",
        "Kernels per second of all clients together; bars span the repeats. The dotted line is what N clients would "
        "reach if each were as fast as one alone.",
    ),
    "latency": (
        "Latency",
        "How many launches were done within which time, from the launch to the end of the wait for it. The mark is the "
        f"p99. With graphs, a launch is a whole graph. Values are within {RELATIVE_ERROR:.1%} of what was measured.",
    ),
    "fairness": (
        "Fairness",
        "Jain's index over the clients' rates: 1 when all get the same, 1/N when one gets everything.",
    ),
    "memory": (
        "Memory",
        "What each client holds on the GPU, context included, as NVML tells. A context is smaller with fewer threads.",
    ),
    "mix": (
        "Which workloads share well",
        "How many times as long a launch of each row takes beside a program of each column. 1 means that it does not "
        "notice; 2 that it gets half.",
    ),
}


def figures(collected: Collected, table: list[Row]) -> dict[str, Figure]:
    """By name; a simulated GPU has no plots of speed."""
    drawn = {"memory": plots.memory}
    if not collected.simulated:
        drawn |= {"gains": gains, "throughput": plots.throughput, "latency": plots.latency, "fairness": plots.fairness}
    found = {name: draw(table) for name, draw in drawn.items() if table}
    if not collected.simulated:
        found["mix"] = heatmap(collected.pairs)
    return {name: figure for name in TITLES if (figure := found.get(name)) is not None}


def html(collected: Collected, table: list[Row], drawn: Mapping[str, Figure]) -> str:
    notes = words.cautions(collected.documents, table)
    if collected.simulated:
        notes.insert(
            0,
            "These files come from a simulated GPU: nothing in them says anything about speed, and no speed is shown.",
        )
    sections = [
        Section(
            title,
            text,
            f"{title}: {text} The figures are in a table on this page.",
            drawn[name],
            _beside(name, collected),
        )
        for name, (title, text) in TITLES.items()
        if name in drawn
    ]
    if table:
        head, lines = words.figures(table, collected.simulated)
        text = "Medians over the repeats, with the least and the largest where they differ."
        sections.append(Section("All figures", text, body=page.table(head, lines)))
    if collected.documents:
        text = "Figures are comparable only where these are the same."
        sections.append(Section("Environment", text, body=page.facts(words.environment(collected.documents))))
        text = "On an idle machine of the same kind; docs/workload.md explains the method."
        sections.append(Section("How to repeat it", text, body=page.code(words.commands(collected.documents))))
    cards = [] if collected.simulated else words.headlines(table)
    return page.page("Sharing one GPU: what it costs, what it gains", _subtitle(collected), notes, cards, sections)


def _beside(name: str, collected: Collected) -> str:
    return page.folded("The figures", page.table(*words.pairs(collected.pairs), left=2)) if name == "mix" else ""


def _subtitle(collected: Collected) -> str:
    facts = [document.environment for document in collected.documents]
    gpus = dict.fromkeys(str(it.get("gpu", {}).get("product", "an unknown GPU")) for it in facts)
    drivers = dict.fromkeys(f"driver {it['gpu']['driver']}" for it in facts if it.get("gpu", {}).get("driver"))
    dates = sorted({str(it.get("date", ""))[:10] for it in facts} - {""})
    return ", ".join([*gpus, *drivers, *dates[:1]]) or "the scenario mix"


def build(collected: Collected) -> tuple[str, dict[str, Figure]]:
    """The page, and the figures in it by name."""
    table = rows(collected.runs)
    drawn = figures(collected, table)
    return html(collected, table, drawn), drawn
