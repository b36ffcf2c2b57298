"""The plot of measurements/pages/scale.md: CPU seconds of each decision by nodes, log–log, from decisions.json.

python -m measurements.scale.decisions.plot
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "gpushare"
from matplotlib import pyplot as plt  # noqa: E402 - the backend comes first

ROOT = Path(__file__).resolve().parents[3]
FIGURES = ROOT / "measurements/results/scale/decisions.json"
PICTURE = ROOT / "measurements/results/scale/decisions.svg"
SHOWN = {
    "planOneShare": "plan: one share",
    "planOverlapping": "plan: 100 shares that overlap",
    "planRolloutOfMany": "plan: roll-out of all MPS pods",
    "pendingFewSizes": "claims that wait",
    "templatesInPlace": "claim templates in place",
    "differencesSettled": "what differs from the plan",
}


def main() -> None:
    result = json.loads(FIGURES.read_text())
    figure, axes = plt.subplots(figsize=(8, 5))
    for number, (name, label) in enumerate(SHOWN.items()):
        points = {int(size): value for size, value in result["cases"][name]["seconds"].items()}
        color = f"C{number}"
        text = f"{label}, slope {result['cases'][name]['slope']}"
        axes.loglog(list(points), list(points.values()), "o-", color=color, label=text)
        earlier = result.get("before", {}).get(name, {}).get("seconds", {})
        axes.loglog([int(size) for size in earlier], list(earlier.values()), "o:", color=color, alpha=0.5)
    axes.set_xlabel("nodes of 8 GPUs")
    axes.set_ylabel("CPU seconds")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(title="solid: now; dotted: before", fontsize="small")
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
