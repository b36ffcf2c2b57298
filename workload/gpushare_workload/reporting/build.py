"""The content of the page: its sections and their order."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from gpushare_workload.reporting import page, repeating, texts
from gpushare_workload.reporting.figures import modes
from gpushare_workload.reporting.figures.depth import depth
from gpushare_workload.reporting.figures.gains import gains
from gpushare_workload.reporting.figures.pairs import pairs_drawn
from gpushare_workload.reporting.figures.timeline import timeline
from gpushare_workload.reporting.page import PageSection
from gpushare_workload.reporting.verdicts import CLEARLY, LITTLE, verdicts
from gpushare_workload.results.files import Collected
from gpushare_workload.results.histogram import RELATIVE_ERROR
from gpushare_workload.results.summary import Row, rows

TITLES = {
    "gains": (
        "What MPS gains",
        "Throughput of all clients together under MPS, as a multiple of time slices with as many clients, and of one "
        "client that has the GPU to itself; each at the same depth (launches between two waits), with graphs on both "
        "sides. The second bar says whether sharing gets more done than one program after the other. A thin line "
        "spans the repeats of a case that ran more than once.",
    ),
    "timeline": (
        "Who runs when",
        "Each bar is a kernel, as it recorded itself by the GPU's own clock; a kernel that a time slice cut in two is "
        "two bars. Above, processes take turns; below, their kernels run at the same moment.",
    ),
    "depth": (
        "Throughput by depth",
        "A client that launches several kernels before it waits keeps the GPU busy during its turn, so time slices "
        "lose less. Hollow marks: the same number of kernels as one captured graph. Both axes are logarithmic.",
    ),
    "pairs": (
        "Which programs go together",
        "Two programs beside each other: the sum of what each gets done, in parts of what it gets done alone without a "
        "limit. Near 2 the two are complementary; near 1 they divide one part of the GPU.",
    ),
    "throughput": (
        "Throughput by clients",
        "Kernels per second of all clients together; bars span repeats, where there are any. The dotted line is what N "
        "clients would reach if each were as fast as one alone.",
    ),
    "latency": (
        "Latency",
        "The fraction of launches that were done within a time, from the launch to the end of the wait for it, at "
        f"depth 1. The mark is the p99. Values are within {RELATIVE_ERROR:.1%} of the measurement.",
    ),
    "fairness": (
        "Fairness",
        "Jain's index over the clients' rates: 1 when all get the same, 1/N when one gets everything. Shown because "
        "some clients got less than others.",
    ),
    "memory": (
        "Memory",
        "The GPU memory of each client, its context included, from NVML. A context is smaller with fewer threads.",
    ),
}


def figures(collected: Collected, table: list[Row]) -> dict[str, Figure]:
    """The plots by name, without plots of speed for a simulated GPU."""
    drawn = {"memory": modes.memory(table) if table else None}
    if not collected.simulated:
        drawn |= {
            "gains": gains(table),
            "depth": depth(table),
            "throughput": modes.throughput(table),
            "latency": modes.latency(table),
            "fairness": modes.fairness(table),
            "timeline": timeline(collected.timelines, collected.overlaps),
            "pairs": pairs_drawn(collected.pairs),
        }
    return {name: figure for name in TITLES if (figure := drawn.get(name)) is not None}


def html(collected: Collected, table: list[Row], drawn: Mapping[str, Figure]) -> str:
    notes = texts.cautions(collected.documents, table)
    if collected.simulated:
        notes.insert(
            0,
            "These files come from a simulated GPU: they say nothing about speed, and no speed is shown.",
        )
    sections = [] if collected.simulated else _verdicts(table)
    sections += [
        PageSection(
            title,
            text,
            name,
            f"{title}: {text} The figures are in a table on this page.",
            drawn[name],
            _beside(name, collected),
        )
        for name, (title, text) in TITLES.items()
        if name in drawn
    ]
    if table:
        text = "Medians over the repeats, with the least and the largest where they differ."
        body = page.folded("Show the table", page.table(*texts.figures(table, collected.simulated)))
        sections.append(PageSection("All figures", text, body=body))
    if collected.documents:
        text = "Figures can be compared only if these values are the same."
        sections.append(PageSection("Environment", text, body=page.facts(texts.environment(collected.documents))))
    sections += _repeating(collected, drawn)
    cards = [] if collected.simulated else texts.headlines(table)
    return page.page("Sharing one GPU: costs and gains", _subtitle(collected), notes, cards, sections)


def _verdicts(table: list[Row]) -> list[PageSection]:
    load_verdicts = verdicts(table)
    if not load_verdicts:
        return []
    once = "" if all(row.repeats > 1 for row in table) else " A case that ran once shows no spread."
    text = (
        "Does MPS get more done than time slices, and more than one program after the other? Judged by both ratios, at "
        f"the shallowest and at the deepest depth that was measured. Clearly more is {CLEARLY:g} times or more in "
        f"every repeat, a little more is above {LITTLE:g} times.{once}"
    )
    return [PageSection("Verdicts", text, body=page.verdicts(load_verdicts))]


def _repeating(collected: Collected, drawn: Mapping[str, Figure]) -> list[PageSection]:
    """The commands of what the page shows: pairs and overlaps are shown beside their pictures."""
    text = "On an idle machine of the same kind; docs/workload.md explains the method."
    scenarios = repeating.scenarios(
        collected.pairs if "pairs" in drawn else (), collected.overlaps if "timeline" in drawn else ()
    )
    if scenarios:
        text += (
            " The output of mix and overlap does not name all options. The commands here are made from what it does "
            "name, with the defaults for the rest, such as the length of a run and the size of its data."
        )
    commands = [*repeating.benchmarks(collected.documents), *scenarios]
    return [PageSection("How to repeat it", text, body=page.code(commands))] if commands else []


def _beside(name: str, collected: Collected) -> str:
    """The figures of a picture that is not drawn from the benchmark's rows."""
    if name == "pairs":
        return page.folded("The figures", page.table(*texts.pairs(collected.pairs), left=2))
    if name == "timeline":
        return page.folded("The figures", page.table(*texts.overlaps(collected.overlaps), left=2))
    return ""


def _subtitle(collected: Collected) -> str:
    facts = [document.environment for document in collected.documents]
    gpus = dict.fromkeys(str(each.get("gpu", {}).get("product", "an unknown GPU")) for each in facts)
    drivers = dict.fromkeys(f"driver {each['gpu']['driver']}" for each in facts if each.get("gpu", {}).get("driver"))
    dates = sorted({str(each.get("date", ""))[:10] for each in facts} - {""})
    return ", ".join([*gpus, *drivers, *dates[:1]]) or "scenarios alone"


def build(collected: Collected) -> tuple[str, dict[str, Figure]]:
    """The page, and its plots by name."""
    table = rows(collected.runs)
    drawn = figures(collected, table)
    return html(collected, table, drawn), drawn
