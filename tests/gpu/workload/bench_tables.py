"""The tables of docs/sharing-a-gpu.md, from what the benchmark and the scenarios beside this file measured:
docs/results/PRODUCT/bench and docs/results/PRODUCT/workload*.json.

A table is of one part of the benchmark. The report of a product takes the runs of one case together, whatever the part,
so that some of its figures are of six runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpushare.trial.spread import Spread
from gpushare_workload.backend.work import Grid, LoadKind
from gpushare_workload.bench.plan import Load, SharingMode
from gpushare_workload.bench.results.summary import Row, find, rows
from gpushare_workload.reporting.files import Collected, Overlap, Setting, read
from gpushare_workload.reporting.selection import PREFERRED_CLIENTS
from gpushare_workload.reporting.style import GRIDS
from tests.gpu.programs.figures import PRODUCTS
from tests.gpu.workload.scenario_table import scenarios
from tests.page_tables import head_of, line_of

CLIENTS = PREFERRED_CLIENTS
DEPTHS = (1, 4, 16, 64)
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


def tables(results: Path) -> dict[str, str]:
    """By their names on the page. KeyError, ValueError: something of them was not measured, or not on a GPU."""
    folders = {product.upper(): results / product / "bench" for product in PRODUCTS}
    depth, memory, capped, scale = (
        {product: rows(_read(folder, names).runs) for product, folder in folders.items()}
        for names in ("depth-*.json", "memory.json", "caps.json", "scale.json")
    )
    lines = {product: _read(folder, "*.jsonl") for product, folder in folders.items()}
    found = {
        "gains": _gains(depth),
        "depth": _depth(depth),
        "latency": _latency(depth),
        "overlap": _overlap(lines),
        "caps": _caps(capped),
        "pairs": _pairs(lines),
        "clients": _clients({product: [*depth[product], *scale[product]] for product in folders}),
        "memory": _memory(memory),
        "scenarios": scenarios(results),
    }
    return {name: "\n".join(table) for name, table in found.items()}


def _read(folder: Path, pattern: str) -> Collected:
    """ValueError: figures of a simulated GPU."""
    collected = read(sorted(folder.glob(pattern)))
    if collected.simulated:
        raise ValueError(f"{folder}: figures of a simulated GPU are no results")
    return collected


Tables = Mapping[str, Sequence[Row]]
"""By product."""


def _gains(found: Tables) -> Iterator[str]:
    columns = [f"{product}: × {other}" for product in found for other in ("time slices", "one client alone")]
    yield from head_of("kernels", "depth", *columns)
    for grid, title in GRIDS.items():
        for depth in GAIN_DEPTHS:
            here = [_row(table, Load(LoadKind.COMPUTE, grid, depth), CLIENTS, MPS) for table in found.values()]
            gains = [_times(gain) for row in here for gain in (row.of_time_slicing, row.of_one_client)]
            yield line_of(title, str(depth), *gains)


def _depth(found: Tables) -> Iterator[str]:
    yield from head_of("kernels", "run by", "GPU", *(f"depth {it}" for it in DEPTHS), f"graphs of {GRAPH_DEPTH}")
    ways = (("8 in time slices", CLIENTS, SLICES), ("8 under MPS", CLIENTS, MPS), ("one alone", 1, SLICES))
    for grid, title in GRIDS.items():
        loads = [Load(LoadKind.COMPUTE, grid, it) for it in DEPTHS]
        loads.append(Load(LoadKind.COMPUTE, grid, GRAPH_DEPTH, graph=True))
        for how, clients, mode in ways:
            for product, table in found.items():
                rates = [f"{_row(table, load, clients, mode).total.median:,.0f}" for load in loads]
                yield line_of(title, how, product, *rates)


def _latency(found: Tables) -> Iterator[str]:
    columns = [f"{product}, {how}: p{part}" for product in found for how in ("time slices", "MPS")
               for part in PERCENTILES]  # fmt: skip
    yield from head_of("kernels", *columns)
    for grid, title in GRIDS.items():
        here = [
            _row(table, Load(LoadKind.COMPUTE, grid), CLIENTS, mode)
            for table in found.values()
            for mode in (SLICES, MPS)
        ]
        yield line_of(title, *(_microseconds(row, percent) for row in here for percent in PERCENTILES))


def _overlap(found: Mapping[str, Collected]) -> Iterator[str]:
    columns = [f"{product}, {how}{what}" for product in found for how in ("time slices", "MPS")
               for what in ("", ": any")]  # fmt: skip
    yield from head_of("", *columns)
    for grid, depth, processes, title in OVERLAPS:
        cells = []
        for collected in found.values():
            for setting in UNCAPPED:
                one = _line(collected, setting, grid, depth, processes)
                cells += [
                    one.at_once.text(".2f"),
                    f"{one.running_percent.text('.0f')} %" if one.running_percent else "–",
                ]
        yield line_of(title, *cells)


def _line(collected: Collected, setting: Setting, grid: Grid, depth: int, processes: int) -> Overlap:
    """KeyError: it was not measured."""
    wanted = (setting, grid.value, depth, processes)
    for one in collected.overlaps:
        if (one.setting, one.grid, one.depth, one.processes) == wanted:
            return one
    raise KeyError(f"no overlap {wanted}")


def _caps(found: Tables) -> Iterator[str]:
    yield from head_of("clients", "kernels", "depth", "GPU", "kernels/s without caps", "with caps", "p50 µs without",
                     "with", "p99 µs without", "with")  # fmt: skip
    for clients in CAPPED_CLIENTS:
        for grid in (Grid.SMALL, Grid.HALF):
            for depth in (1, GRAPH_DEPTH):
                for product, table in found.items():
                    here = [_row(table, Load(LoadKind.COMPUTE, grid, depth), clients, mode) for mode in (MPS, CAPS)]
                    yield line_of(
                        f"{clients} at {100 / clients:g} %", GRIDS[grid], str(depth), product,
                        *(f"{row.total.median:,.0f}" for row in here),
                        *(_microseconds(row, percent) for percent in PERCENTILES for row in here),
                    )  # fmt: skip


def _pairs(found: Mapping[str, Collected]) -> Iterator[str]:
    yield from head_of("programs", "GPU", "time slices", "MPS", "MPS, 50 % each", "MPS, 25 % each")
    for kinds in dict.fromkeys(pair.kinds for one in found.values() for pair in one.pairs):
        title = " + ".join(kinds)
        for product, collected in found.items():
            combined = {pair.setting: pair.combined for pair in collected.pairs if pair.kinds == kinds}
            yield line_of(title, product, *(combined[setting].text(".2f") for setting in SETTINGS))


def _memory(found: Tables) -> Iterator[str]:
    columns = ("× time slices", "× one client alone", "TB/s of one alone", "of 8 in time slices", "of 8 under MPS")
    yield from head_of("kernels", "depth", "GPU", *columns)
    for grid, title in GRIDS.items():
        for depth in MEMORY_DEPTHS:
            load = Load(LoadKind.MEMORY, grid, depth)
            for product, table in found.items():
                alone, slices = (_row(table, load, number, SLICES) for number in (1, CLIENTS))
                mps = _row(table, load, CLIENTS, MPS)
                moved = [f"{row.gigabytes_per_second / 1000:.2f}" for row in (alone, slices, mps)]
                gains = [_times(gain) for gain in (mps.of_time_slicing, mps.of_one_client)]
                yield line_of(title, str(depth), product, *gains, *moved)


def _clients(found: Tables) -> Iterator[str]:
    yield from head_of("kernels", "depth", "GPU", *(f"{number} clients" for number in NUMBERS))
    for grid, title in GRIDS.items():
        for depth in (1, GRAPH_DEPTH):
            load = Load(LoadKind.COMPUTE, grid, depth)
            for product, table in found.items():
                gains = [_times(_row(table, load, number, MPS).of_time_slicing) for number in NUMBERS]
                yield line_of(title, str(depth), product, *gains)


def _row(table: Sequence[Row], load: Load, clients: int, mode: SharingMode) -> Row:
    """KeyError: it was not measured."""
    row = find(table, load, clients, mode)
    if row is None:
        raise KeyError(f"{clients} clients, {load}, {mode.value}")
    return row


def _times(gain: Spread | None) -> str:
    """ValueError: it was not measured."""
    if gain is None:
        raise ValueError("a gain without its baseline")
    return gain.text(".1f" if gain.median >= 10 else ".2f")


def _microseconds(row: Row, percent: float) -> str:
    return f"{row.percentile_us(percent):,.0f}"
