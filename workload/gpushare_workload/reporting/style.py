"""The style of the plots: colours that colour-blind readers can distinguish, and marks that work without colour."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.results.files import Setting

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

CAPS = ("#0072b2", "#5aa5d1", "#a9cfe6")
PROCESSES = ("#0072b2", "#d55e00", "#00795a", "#aa6c00")


def depth_text(load: Load) -> str:
    """The depth in words, such as `depth 16`, or `graph of 16`."""
    return f"graph of {load.depth}" if load.graph else f"depth {load.depth}"


def setting_text(setting: Setting) -> str:
    """The setting in words, such as `Time slices`, `MPS`, `MPS, 50 % each`."""
    if setting.sharing != "mps":
        return "Time slices"
    return "MPS" if setting.threads >= 100 else f"MPS, {setting.threads:g} % each"


def setting_colour(setting: Setting) -> str:
    """The lighter, the tighter the limit."""
    if setting.sharing != "mps":
        return LINE_STYLES[SharingMode.TIME_SLICING].colour
    return CAPS[0 if setting.threads >= 100 else 1 if setting.threads >= 50 else 2]


def process_colour(index: int) -> str:
    return PROCESSES[index % len(PROCESSES)]


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
"""The rcParams of matplotlib. Because of the salt, equal plots are equal bytes."""
