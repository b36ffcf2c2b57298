"""The content of the page: its sections and their order."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from gpushare_workload.bench.results.histogram import RELATIVE_ERROR
from gpushare_workload.bench.results.summary import Row, rows
from gpushare_workload.reporting import page, plots, texts
from gpushare_workload.reporting.files import Collected
from gpushare_workload.reporting.gains import gains
from gpushare_workload.reporting.heatmap import heatmap
from gpushare_workload.reporting.page import PageSection

TITLES = {
    "gains": (
        "Against time-slicing",
        "Throughput of all clients together, as a multiple of time-slicing with as many clients. The thin line spans "
        "the repeats.",
    ),
    "throughput": (
        "Throughput",
        "Kernels per second of all clients together; bars span the repeats. The dotted line is what N clients would "
        "reach if each were as fast as one alone.",
    ),
    "latency": (
        "Latency",
        "The fraction of launches that were done within a time, from the launch to the end of the wait for it. The "
        "mark is the p99. With graphs, a launch is a whole graph. Values are within "
        f"{RELATIVE_ERROR:.1%} of the measurement.",
    ),
    "fairness": (
        "Fairness",
        "Jain's index over the clients' rates: 1 when all get the same, 1/N when one gets everything.",
    ),
    "memory": (
        "Memory",
        "The GPU memory of each client, its context included, from NVML. A context is smaller with fewer threads.",
    ),
    "mix": (
        "Which workloads share well",
        "How many times as long a launch of the row's program takes beside the column's program. 1 means no effect; 2 "
        "means half of the rate.",
    ),
}


def figures(collected: Collected, table: list[Row]) -> dict[str, Figure]:
    """The plots by name, without plots of speed for a simulated GPU."""
    drawn = {"memory": plots.memory}
    if not collected.simulated:
        drawn |= {"gains": gains, "throughput": plots.throughput, "latency": plots.latency, "fairness": plots.fairness}
    found = {name: draw(table) for name, draw in drawn.items() if table}
    if not collected.simulated:
        found["mix"] = heatmap(collected.pairs)
    return {name: figure for name in TITLES if (figure := found.get(name)) is not None}


def html(collected: Collected, table: list[Row], drawn: Mapping[str, Figure]) -> str:
    notes = texts.cautions(collected.documents, table)
    if collected.simulated:
        notes.insert(
            0,
            "These files come from a simulated GPU: they say nothing about speed, and no speed is shown.",
        )
    sections = [
        PageSection(
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
        head, lines = texts.figures(table, collected.simulated)
        text = "Medians over the repeats, with the least and the largest where they differ."
        sections.append(PageSection("All figures", text, body=page.table(head, lines)))
    if collected.documents:
        text = "Figures can be compared only if these values are the same."
        sections.append(PageSection("Environment", text, body=page.facts(texts.environment(collected.documents))))
        text = "On an idle machine of the same kind; docs/workload.md explains the method."
        sections.append(PageSection("How to repeat it", text, body=page.code(texts.commands(collected.documents))))
    cards = [] if collected.simulated else texts.headlines(table)
    return page.page("Sharing one GPU: costs and gains", _subtitle(collected), notes, cards, sections)


def _beside(name: str, collected: Collected) -> str:
    return page.folded("The figures", page.table(*texts.pairs(collected.pairs), left=2)) if name == "mix" else ""


def _subtitle(collected: Collected) -> str:
    facts = [document.environment for document in collected.documents]
    gpus = dict.fromkeys(str(it.get("gpu", {}).get("product", "an unknown GPU")) for it in facts)
    drivers = dict.fromkeys(f"driver {it['gpu']['driver']}" for it in facts if it.get("gpu", {}).get("driver"))
    dates = sorted({str(it.get("date", ""))[:10] for it in facts} - {""})
    return ", ".join([*gpus, *drivers, *dates[:1]]) or "the scenario mix"


def build(collected: Collected) -> tuple[str, dict[str, Figure]]:
    """The page, and its plots by name."""
    table = rows(collected.runs)
    drawn = figures(collected, table)
    return html(collected, table, drawn), drawn
