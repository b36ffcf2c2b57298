"""The tables of kernels.md, from what benchmark and scenarios of this folder measured:
measurements/results/PRODUCT/bench and measurements/results/PRODUCT/workload*.json.

A table is of one part of the benchmark, but for those by clients. The report of a product takes the runs of one case
together, whatever the part, so that some of its figures are of six runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.reporting.selection import PREFERRED_CLIENTS
from gpushare_workload.reporting.style import GRIDS
from gpushare_workload.results.document import Run
from gpushare_workload.results.files import Collected, Overlap, Setting, read
from gpushare_workload.results.summary import Row, find, rows
from measurements.gpu.programs.figures import PRODUCTS
from measurements.gpu.workload.capped_pair_table import capped_pair_tables
from measurements.gpu.workload.scenario_table import scenarios
from tests.page_tables import head_of, line_of

CLIENTS = PREFERRED_CLIENTS
DEPTHS = (1, 16, 64)
GAIN_DEPTHS, MEMORY_DEPTHS = (1, 16, 64), (1, 16)
GRAPH_DEPTH = 16
NUMBERS = (2, 4, 8, 16)
CAPPED_CLIENTS = (2, CLIENTS)
PERCENTILES = (50, 99)
SLICES, MPS, CAPS = SharingMode.TIME_SLICING, SharingMode.MPS, SharingMode.MPS_EQUAL_CAPS
OVERLAPS = (
    (Grid.SMALL, 1, 2, "2 processes, 8 blocks, depth 1"),
    (Grid.HALF, 1, 2, "2 processes, half the GPU, depth 1"),
    (Grid.SMALL, 4, 4, "4 processes, 8 blocks, depth 4"),
)
UNCAPPED = (Setting(SLICES.value, 100), Setting(MPS.value, 100))
SETTINGS = (*UNCAPPED, *(Setting(MPS.value, threads) for threads in (50, 25)))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the benchmark on one product: its rows, and those of each repeat alone."""

    whole: Sequence[Row]
    repeats: Sequence[Sequence[Row]]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "Part":
        numbers = sorted({run.repeat for run in runs})
        return cls(rows(runs), [rows(run for run in runs if run.repeat == number) for number in numbers])

    def row(self, load: Load, clients: int, mode: SharingMode) -> Row:
        """KeyError: it was not measured."""
        row = find(self.whole, load, clients, mode)
        if row is None:
            raise KeyError(f"{clients} clients, {load}, {mode.value}")
        return row

    def rates(self, load: Load, clients: int, mode: SharingMode) -> list[float]:
        """Kernels per second in each repeat."""
        return [row.total.median for row in self._each(load, clients, mode)]

    def microseconds(self, load: Load, clients: int, mode: SharingMode, percent: float) -> str:
        """The percentile over all repeats; its extremes are the least and the largest of one repeat."""
        whole = self.row(load, clients, mode).percentile_us(percent)
        each = [row.percentile_us(percent) for row in self._each(load, clients, mode)]
        return Spread(whole, min(each), max(each)).text(",.0f")

    def _each(self, load: Load, clients: int, mode: SharingMode) -> list[Row]:
        return [row for rows_ in self.repeats if (row := find(rows_, load, clients, mode)) is not None]


Parts = Mapping[str, Part]
"""Parts by product."""


def tables(results: Path) -> dict[str, str]:
    """The tables by name. KeyError, ValueError: something of them was not measured, or not on a GPU."""
    folders = {product.upper(): results / product / "bench" for product in PRODUCTS}
    depth, memory, capped, scale = (
        {product: Part.of(_read(folder, names).runs) for product, folder in folders.items()}
        for names in ("depth-*.json", "memory.json", "caps.json", "scale.json")
    )
    lines = {product: _read(folder, "*.jsonl") for product, folder in folders.items()}
    written = {
        "gains": _gains(depth),
        **{f"depth_{product.lower()}": _depth(part) for product, part in depth.items()},
        "latency": _latency(depth),
        "overlap": _overlap(lines),
        "caps": _caps(capped),
        "cap_latencies": _cap_latencies(capped),
        "pairs": _pairs(lines),
        "clients": _clients(depth, scale),
        "clients_alone": _clients_alone(depth, scale),
        "memory": _memory(memory),
        "bandwidth": _bandwidth(memory),
        **scenarios(results),
        **capped_pair_tables(results),
    }
    return {name: "\n".join(table) for name, table in written.items()}


def _kernels(load: Load) -> str:
    return f"{GRIDS[load.grid]}, depth {load.depth}"


def _read(folder: Path, pattern: str) -> Collected:
    """ValueError: figures of a simulated GPU."""
    collected = read(sorted(folder.glob(pattern)))
    if collected.simulated:
        raise ValueError(f"{folder}: figures of a simulated GPU are no results")
    return collected


def _gains(parts: Parts) -> Iterator[str]:
    columns = [f"{product}: × {other}" for product in parts for other in ("time slices", "one client alone")]
    yield from head_of("kernels", "depth", *columns)
    for grid, title in GRIDS.items():
        for depth in GAIN_DEPTHS:
            here = [part.row(Load(LoadKind.COMPUTE, grid, depth), CLIENTS, MPS) for part in parts.values()]
            gains = [_times(gain) for row in here for gain in (row.of_time_slicing, row.of_one_client)]
            yield line_of(title, str(depth), *gains)


def _depth(part: Part) -> Iterator[str]:
    yield from head_of("kernels", "run by", *(f"depth {depth}" for depth in DEPTHS), f"graphs of {GRAPH_DEPTH}")
    ways = (("8 in time slices", CLIENTS, SLICES), ("8 under MPS", CLIENTS, MPS), ("one alone", 1, SLICES))
    for grid, title in GRIDS.items():
        loads = [Load(LoadKind.COMPUTE, grid, depth) for depth in DEPTHS]
        loads.append(Load(LoadKind.COMPUTE, grid, GRAPH_DEPTH, graph=True))
        for how, clients, mode in ways:
            yield line_of(title, how, *(part.row(load, clients, mode).total.text(",.0f") for load in loads))


def _latency(parts: Parts) -> Iterator[str]:
    columns = [f"{how}: p{percent}" for how in ("time slices", "MPS") for percent in PERCENTILES]
    yield from head_of("kernels", "GPU", *columns)
    for grid, title in GRIDS.items():
        load = Load(LoadKind.COMPUTE, grid)
        for product, part in parts.items():
            cells = [
                part.microseconds(load, CLIENTS, mode, percentile)
                for mode in (SLICES, MPS)
                for percentile in PERCENTILES
            ]
            yield line_of(title, product, *cells)


def _overlap(results: Mapping[str, Collected]) -> Iterator[str]:
    yield from head_of("", "GPU", "time slices", "any", "MPS", "any")
    for grid, depth, processes, title in OVERLAPS:
        for product, collected in results.items():
            cells = []
            for setting in UNCAPPED:
                overlap = _line(collected, setting, grid, depth, processes)
                cells += [
                    overlap.at_once.text(".2f"),
                    f"{overlap.running_percent.text('.0f')} %" if overlap.running_percent else "–",
                ]
            yield line_of(title, product, *cells)


def _line(collected: Collected, setting: Setting, grid: Grid, depth: int, processes: int) -> Overlap:
    """KeyError: it was not measured."""
    wanted = (setting, grid.value, depth, processes)
    for overlap in collected.overlaps:
        if (overlap.setting, overlap.grid, overlap.depth, overlap.processes) == wanted:
            return overlap
    raise KeyError(f"no overlap {wanted}")


CAPPED = tuple(
    (clients, Load(LoadKind.COMPUTE, grid, depth))
    for clients in CAPPED_CLIENTS
    for grid in (Grid.SMALL, Grid.HALF)
    for depth in (1, GRAPH_DEPTH)
)


def _caps(parts: Parts) -> Iterator[str]:
    yield from head_of("clients", "kernels", "GPU", "kernels/s without caps", "with caps")
    for clients, load in CAPPED:
        for product, part in parts.items():
            rates = [part.row(load, clients, mode).total.text(",.0f") for mode in (MPS, CAPS)]
            yield line_of(_capped(clients), _kernels(load), product, *rates)


def _cap_latencies(parts: Parts) -> Iterator[str]:
    columns = ("p50 µs without caps", "with caps", "p99 µs without", "with")
    yield from head_of("clients", "GPU", *columns)
    for clients, load in CAPPED:
        for product, part in parts.items():
            cells = [
                part.microseconds(load, clients, mode, percentile) for percentile in PERCENTILES for mode in (MPS, CAPS)
            ]
            yield line_of(f"{_capped(clients)}: {_kernels(load)}", product, *cells)


def _capped(clients: int) -> str:
    return f"{clients} at {100 / clients:g} %"


def _pairs(results: Mapping[str, Collected]) -> Iterator[str]:
    yield from head_of("programs", "GPU", "time slices", "MPS", "MPS, 50 % each", "MPS, 25 % each")
    for kinds in dict.fromkeys(pair.kinds for result in results.values() for pair in result.pairs):
        title = " + ".join(kinds)
        for product, collected in results.items():
            combined = {pair.setting: pair.combined for pair in collected.pairs if pair.kinds == kinds}
            yield line_of(title, product, *(combined[setting].text(".2f") for setting in SETTINGS))


MEMORY = tuple(Load(LoadKind.MEMORY, grid, depth) for grid in GRIDS for depth in MEMORY_DEPTHS)


def _memory(parts: Parts) -> Iterator[str]:
    yield from head_of("kernels", *(f"{product}: × {other}" for product in parts
                                    for other in ("time slices", "one client alone")))  # fmt: skip
    for load in MEMORY:
        rows_ = [part.row(load, CLIENTS, MPS) for part in parts.values()]
        yield line_of(
            _kernels(load), *(_times(gain) for row in rows_ for gain in (row.of_time_slicing, row.of_one_client))
        )


def _bandwidth(parts: Parts) -> Iterator[str]:
    yield from head_of("kernels", "GPU", "TB/s of one alone", "of 8 in time slices", "of 8 under MPS")
    ways = ((1, SLICES), (CLIENTS, SLICES), (CLIENTS, MPS))
    for load in MEMORY:
        for product, part in parts.items():
            yield line_of(_kernels(load), product, *(_terabytes(part.row(load, *way)) for way in ways))


def _terabytes(row: Row) -> str:
    """Through device memory in a second."""
    total, each = row.total, row.launch.bytes_moved / 1e12
    return Spread(total.median * each, total.least * each, total.largest * each).text(".2f")


BY_CLIENTS = tuple(Load(LoadKind.COMPUTE, grid, depth) for grid in GRIDS for depth in (1, GRAPH_DEPTH))


def _clients(depth: Parts, scale: Parts) -> Iterator[str]:
    yield from head_of("kernels", "GPU", *(f"{number} clients" for number in NUMBERS))
    for load in BY_CLIENTS:
        for product in depth:
            parts = {number: (depth if number == CLIENTS else scale)[product] for number in NUMBERS}
            gains = [_times(part.row(load, number, MPS).of_time_slicing) for number, part in parts.items()]
            yield line_of(_kernels(load), product, *gains)


def _clients_alone(depth: Parts, scale: Parts) -> Iterator[str]:
    """One client alone ran in the same repeats as 8 clients. For other numbers, each run stands to each of its runs."""
    yield from head_of("kernels", "GPU", *(f"{number} clients" for number in NUMBERS))
    for load in BY_CLIENTS:
        for product, part in depth.items():
            alone = part.rates(load, 1, SLICES)
            gains = []
            for number in NUMBERS:
                if number == CLIENTS:
                    gains.append(part.row(load, number, MPS).of_one_client)
                else:
                    together = scale[product].rates(load, number, MPS)
                    gains.append(Spread.of_any([all_ / single for all_ in together for single in alone]))
            yield line_of(_kernels(load), product, *map(_times, gains))


def _times(gain: Spread | None) -> str:
    """ValueError: it was not measured."""
    if gain is None:
        raise ValueError("a gain without its baseline")
    return gain.text(".1f" if gain.median >= 10 else ".2f")
