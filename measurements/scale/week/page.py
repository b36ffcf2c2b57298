"""Writes the tables of measurements/pages/planning.md and its pictures from the stored result.

python -m measurements.scale.week.page
"""

import json
from collections.abc import Iterator
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "gpushare"
from matplotlib import pyplot as plt  # noqa: E402 - the backend comes first

from gpushare.kube.client import Object  # noqa: E402
from tests import page_tables  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
FIGURES = ROOT / "measurements/results/scale/week.json"
PICTURE = ROOT / "measurements/results/scale/week.svg"
SHARES_PICTURE = ROOT / "measurements/results/scale/week-gpus.svg"
PAGE = ROOT / "measurements/pages/planning.md"
SHOWN = {
    "whole": "whole GPUs alone",
    "wholeApart": "whole GPUs; pods of several apart",
    "slots": "slots of 1/8, 1/4, 1/2; whole GPUs beside",
    "claims": "claims for parts; whole GPUs beside",
    "allClaims": "claims for parts and single GPUs; pods of several apart",
}
WAYS = ("spread", "packed")
LOAD = "80"
"""The load of the table, in percent of all GPUs."""
UNUSABLE = {
    "elsewhere": "free, of another kind than asked",
    "scattered": "free, too little at one place",
    "withoutCpu": "free, too little CPU or memory beside",
}
COLORS = ("#2a6f97", "#e07a5f", "#d9ead3", "#8d8d8d", "#b7b7b7", "#5a5a5a")
PARTS = {"asked": "work that ran", "rounded": "lost by rounding", "usable": "free and usable", **UNUSABLE}


def tables(result: Object) -> dict[str, str]:
    """The tables by name, as the page has them: `arrangements` and `weights`."""
    return {"arrangements": "\n".join(_arrangements(result)), "weights": "\n".join(_weights(result))}


def _arrangements(result: Object) -> Iterator[str]:
    """What each arrangement does at LOAD. The pictures have the other loads."""
    yield from page_tables.head_of(
        "arrangement", "scheduler", "work that ran", "lost by rounding", "GPUs in use", "several GPUs: waited an hour"
    )
    for name, label in SHOWN.items():
        for way in WAYS:
            case = result["weeks"][LOAD][f"{name}.{way}"]
            cells = (_percent(case[figure]) for figure in ("asked", "rounded", "gpusInUse", "waitedAnHour.several"))
            yield page_tables.line_of(label, way, *cells)


def _weights(result: Object) -> list[str]:
    """Packed slots: what their weight in the scheduler's score does."""
    weights, load = result["weights"], str(result["weights"]["load"])
    name, usual = weights["arrangement"], str(result["model"]["packedWeights"]["extended resource"])
    cases = {
        "not packed": result["weeks"][load][f"{name}.spread"],
        usual: result["weeks"][load][f"{name}.packed"],
        **{weight: case for weight, case in weights.items() if weight.isdigit()},
    }
    lines = [
        "| weight of the slot | waited: several GPUs | without CPU | GPUs in use |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for weight in sorted(cases, key=lambda weight: int(weight) if weight.isdigit() else 0):
        case = cases[weight]
        cells = (_percent(case["waited.several"]), f"{case['withoutCpu'][0]:.1f} %", _percent(case["gpusInUse"]))
        lines.append(f"| {weight} | {' | '.join(cells)} |")
    return lines


def _percent(figure: list[float]) -> str:
    """Mean over the seeds, with the range where it shows."""
    mean, least, most = (f"{value:.1f}" for value in figure)
    return f"{mean} %" if least == most else f"{mean} % ({least}–{most})"


def filled(text: str, result: Object) -> str:
    """The page with its tables. ValueError where it lacks the place of one."""
    return page_tables.filled(text, tables(result))


def draw(result: Object) -> None:
    loads = list(result["weeks"])
    figure, axes = plt.subplots(1, 2, figsize=(11, 5.8), sharex=True)
    for number, (name, label) in enumerate(SHOWN.items()):
        for way in WAYS:
            cases = [result["weeks"][load][f"{name}.{way}"] for load in loads]
            style = {"color": f"C{number}", "linestyle": "-" if way == "packed" else ":", "marker": "o"}
            axes[0].plot([int(load) for load in loads], [case["asked"][0] for case in cases], **style)
            axes[1].plot([int(load) for load in loads], [case["waitedAnHour.all"][0] for case in cases], **style,
                         label=f"{label}, {way}")  # fmt: skip
    axes[0].plot([int(load) for load in loads], [int(load) for load in loads], color="black", linewidth=0.6)
    axes[0].set_ylabel("work that ran, percent of all GPUs")
    axes[1].set_ylabel("pods that waited an hour or more, percent")
    axes[1].set_yscale("symlog", linthresh=0.1)
    for axis in axes:
        axis.set_xlabel("work asked, percent of all GPUs")
        axis.grid(True, alpha=0.2)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="lower center", ncols=2, fontsize="small")
    figure.tight_layout(rect=(0, 0.24, 1, 1))
    figure.savefig(PICTURE, metadata={"Date": None})
    plt.close(figure)


def draw_shares(result: Object) -> None:
    """Draws where the GPUs are, for each load, arrangement and scheduler."""
    figure, axes = plt.subplots(1, len(result["weeks"]), figsize=(12, 4.6), sharey=True)
    cases = [(name, way) for name in SHOWN for way in WAYS]
    for axis, (load, weeks) in zip(axes, result["weeks"].items(), strict=True):
        left = [0.0] * len(cases)
        for number, (part, label) in enumerate(PARTS.items()):
            widths = [_part(weeks[f"{name}.{way}"], part) for name, way in cases]
            axis.barh([f"{name}, {way}" for name, way in cases], widths, left=left, color=COLORS[number], label=label)
            left = [before + width for before, width in zip(left, widths, strict=True)]
        axis.axvline(int(load), color="black", linewidth=0.6)
        axis.set_title(f"{load} % asked", fontsize="medium")
        axis.set_xlabel("percent of all GPUs")
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, fontsize="small")
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(SHARES_PICTURE, metadata={"Date": None})
    plt.close(figure)


def _part(case: dict[str, list[float]], name: str) -> float:
    if name == "usable":
        return max(0.0, case["free"][0] - case["unusable"][0])
    return case[name][0]


def write(result: Object) -> None:
    PAGE.write_text(filled(PAGE.read_text(), result))
    draw(result)
    draw_shares(result)


def main() -> None:
    write(json.loads(FIGURES.read_text()))


if __name__ == "__main__":
    main()
