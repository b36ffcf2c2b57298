"""The style of the plots: colours that colour-blind readers can distinguish, and marks that work without colour."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare_workload.backend.work import Grid, LoadKind
from gpushare_workload.bench.plan import SharingMode

TEXT, SOFT, LINE, PAPER = "#1b2430", "#56606d", "#d5dae1", "#ffffff"


@dataclass(frozen=True, slots=True)
class LineStyle:
    """How a mode is drawn."""

    colour: str
    marker: str
    dashes: tuple[float, ...]

    def line(self) -> dict[str, Any]:
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": (0, self.dashes) if self.dashes else "-",
            "linewidth": 2.0,
            "markersize": 6.0,
            "markeredgecolor": PAPER,
            "markeredgewidth": 0.8,
        }


LINE_STYLES: Mapping[SharingMode, LineStyle] = {
    SharingMode.TIME_SLICING: LineStyle("#5f6875", "s", ()),
    SharingMode.MPS: LineStyle("#0072b2", "o", ()),
    SharingMode.MPS_EQUAL_CAPS: LineStyle("#d55e00", "^", (4.0, 1.6)),
    SharingMode.STREAMS: LineStyle("#aa6c00", "D", (1.2, 1.2)),
}
MODES: Mapping[SharingMode, str] = {
    SharingMode.TIME_SLICING: "Time-slicing",
    SharingMode.MPS: "MPS",
    SharingMode.MPS_EQUAL_CAPS: "MPS, equal caps",
    SharingMode.STREAMS: "Streams, one process",
}
GRIDS: Mapping[Grid, str] = {
    Grid.SMALL: "8 blocks",
    Grid.HALF: "half the GPU",
    Grid.SATURATING: "saturating",
}
KINDS: Mapping[LoadKind, str] = {LoadKind.COMPUTE: "Compute", LoadKind.MEMORY: "Memory", LoadKind.TRANSFER: "Transfer"}

SETTINGS: Mapping[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": TEXT,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": LINE,
    "axes.linewidth": 1.0,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e9ecf0",
    "grid.linewidth": 1.0,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "svg.hashsalt": "gpushare",
}
"""matplotlib's rcParams. Because of the salt, equal plots are equal bytes."""
