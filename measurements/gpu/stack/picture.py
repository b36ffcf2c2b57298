"""One picture of the suites' results: departures, pods against bare processes, accidents. Needs `report`."""

import json
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpushare_workload.reporting.style import SETTINGS, SOFT, TEXT

HARMED, SPARED, OTHER = "#d55e00", "#0072b2", "#5f6875"
SIZE, DPI = (12.0, 3.9), 110


def draw(results: Path, picture: Path) -> None:
    """Reads `stack-*.json` below `results`. Raises FileNotFoundError with the missing one."""
    departures, throughput, faults = (_read(results, name) for name in ("departures", "throughput", "faults"))
    with rc_context(dict(SETTINGS)):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots(1, 3, width_ratios=(1.0, 1.2, 1.15))
        _departures(axes[0], departures)
        _throughput(axes[1], throughput)
        _accidents(axes[2], faults)
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, dpi=DPI, metadata={"Software": None})


def _read(results: Path, name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((results / f"stack-{name}.json").read_text())
    return result


def _departures(panel: Axes, result: dict[str, Any]) -> None:
    rows = {"unguarded": (result["unguarded"], HARMED, -0.2), "guarded": (result["guarded"], SPARED, 0.2)}
    for name, (figures, colour, offset) in rows.items():
        places = [place + offset for place in range(len(figures))]
        hurt = [row["hurt"] for row in figures]
        panel.bar(places, hurt, width=0.38, color=colour, label=name)
        for place, figure in zip(places, figures, strict=True):
            panel.annotate(
                str(figure["hurt"]), (place, figure["hurt"]), ha="center", va="bottom", fontsize=8, color=TEXT
            )
    both = zip(result["unguarded"], result["guarded"], strict=True)
    labels = [
        f"{guarded_row['kernel_ms']} ms\n{guarded_row['deletions']}, {other['deletions']}"
        for guarded_row, other in both
    ]
    panel.set_xticks(range(len(labels)), labels)
    panel.set_xlabel("length of the kernel; deletions unguarded, guarded")
    panel.set_ylim(0, 9.5)
    panel.set_ylabel("neighbours of 7 that died")
    panel.set_title("Pods deleted in mid-kernel")
    panel.legend(loc="upper left", ncols=2)


def _throughput(panel: Axes, result: dict[str, Any]) -> None:
    kernels = result["kernels_per_second"]
    ratios = [kernel["ratio"] for kernel in kernels.values()]
    below = [kernel["ratio"] - kernel["ratio_least"] for kernel in kernels.values()]
    above = [kernel["ratio_largest"] - kernel["ratio"] for kernel in kernels.values()]
    panel.bar(range(len(kernels)), ratios, width=0.6, color=SPARED, yerr=(below, above), ecolor=TEXT, capsize=3)
    for place, kernel in enumerate(kernels.values()):
        text = f"{kernel['ratio']:.3f}\n{kernel['pods']:,.0f}/s"
        panel.annotate(text, (place, kernel["ratio_largest"]), xytext=(0, 2), textcoords="offset points",
                       ha="center", va="bottom", fontsize=7, color=TEXT)  # fmt: skip
    panel.axhline(1.0, color=SOFT, linewidth=1.0, linestyle=(0, (4, 3)))
    panel.set_xticks(range(len(kernels)), [case.replace(", ", "\n") for case in kernels], fontsize=6)
    panel.set_ylim(0, 1.3)
    panel.set_ylabel("pods ÷ bare processes")
    panel.set_title("Eight clients, kernels per second")


def _accidents(panel: Axes, result: dict[str, Any]) -> None:
    accidents = dict(reversed(result["accidents"].items()))
    seconds = [accident["new_client_after_seconds"] for accident in accidents.values()]
    colours = [HARMED if accident["hurt"] else SPARED for accident in accidents.values()]
    panel.barh(range(len(accidents)), seconds, height=0.62, color=colours)
    for place, accident in enumerate(accidents.values()):
        text = f"{accident['new_client_after_seconds']:.1f} s, {accident['hurt']} of 3 died"
        panel.annotate(text, (accident["new_client_after_seconds"], place), xytext=(3, 0), textcoords="offset points",
                       va="center", fontsize=8, color=TEXT)  # fmt: skip
    panel.axvline(result["new_client_without_accident_seconds"], color=OTHER, linewidth=1.0, linestyle=(0, (4, 3)))
    panel.set_yticks(range(len(accidents)), [name.replace("-", " ") for name in accidents])
    panel.set_xlim(0, 9.5)
    panel.set_xlabel("seconds until a new pod computes")
    panel.set_title("Accidents (dashed: none)")
    panel.grid(visible=False, axis="y")
