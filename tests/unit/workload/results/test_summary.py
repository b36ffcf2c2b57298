"""Rows of runs: ratios within a repeat, and the spread over repeats."""

import pytest

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.gpus.monitor import SETTLED_SECONDS
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.results.document import Launch
from gpushare_workload.results.summary import find, rows
from tests.unit.workload.results.made_up import SMALL, run


def test_a_ratio_to_time_slicing_is_taken_repeat_by_repeat() -> None:
    table = rows(
        [
            run(SharingMode.TIME_SLICING, (10, 10), repeat=0),
            run(SharingMode.MPS, (100, 100), repeat=0),
            run(SharingMode.TIME_SLICING, (20, 20), repeat=1),  # the machine is twice as fast now
            run(SharingMode.MPS, (200, 220), repeat=1),
        ]
    )
    mps = find(table, SMALL, 2, SharingMode.MPS)
    assert mps is not None
    assert mps.of_time_slicing == Spread(10.25, 10.0, 10.5)
    assert mps.total == Spread(310.0, 200.0, 420.0)


def test_one_client_alone_has_the_whole_gpu_and_the_same_depth() -> None:
    deep = Load(LoadKind.COMPUTE, Grid.SMALL, 16)
    table = rows(
        [
            run(SharingMode.TIME_SLICING, (50,)),
            run(SharingMode.TIME_SLICING, (10, 15)),
            run(SharingMode.MPS, (40,)),
            run(SharingMode.MPS, (40, 60)),
            run(SharingMode.MPS, (25,), threads=25.0),
            run(SharingMode.MPS_EQUAL_CAPS, (20, 20)),
            run(SharingMode.TIME_SLICING, (400,), load=deep),
            run(SharingMode.MPS, (300, 300), load=deep),
        ]
    )
    ratios = {(row.case.load.depth, row.case.clients, row.case.label): row.of_one_client for row in table}
    assert {key: ratio and ratio.median for key, ratio in ratios.items()} == {
        (1, 1, "time-slicing"): None,
        (1, 1, "mps"): 0.8,
        (1, 1, "mps at 25 %"): 0.5,
        (1, 2, "time-slicing"): 0.5,
        (1, 2, "mps"): 2.0,
        (1, 2, "mps-equal-caps"): 0.8,
        (16, 1, "time-slicing"): None,
        (16, 2, "mps"): 1.5,
    }


def test_an_uncapped_mps_client_is_the_one_alone_where_only_mps_is_there() -> None:
    table = rows(
        [run(SharingMode.MPS, (50,)), run(SharingMode.MPS, (40, 60, 100)), run(SharingMode.MPS, (7,), threads=25.0)]
    )
    assert [(row.case.label, row.of_one_client and row.of_one_client.median) for row in table] == [
        ("mps", None),
        ("mps at 25 %", 0.14),
        ("mps", 4.0),
    ]


def test_a_graph_is_compared_with_graphs() -> None:
    graph = Load(LoadKind.COMPUTE, Grid.SMALL, 16, graph=True)
    single = Load(LoadKind.COMPUTE, Grid.SMALL, 16)
    table = rows([run(SharingMode.TIME_SLICING, (10,), load=single), run(SharingMode.MPS, (90,), load=graph)])
    assert [row.of_time_slicing for row in table] == [None, None]


def test_the_work_of_all_clients_is_their_rate_times_that_of_one_launch() -> None:
    (row,) = rows([run(kernels=(1_000_000, 1_000_000), launch=Launch(8, flops=3_000_000, bytes_moved=500_000))])
    assert (row.gflops, row.gigabytes_per_second) == (6000.0, 1000.0)


def test_a_figure_that_was_not_measured_is_absent() -> None:
    (row,) = rows([run(SharingMode.MPS, (1, 1))])
    assert (row.of_time_slicing, row.of_one_client, row.memory_mib, row.busy_percent) == (None, None, None, None)
    assert row.as_json()["of_time_slicing_median"] is None


def test_latency_is_of_all_clients_and_the_worst_client_is_named() -> None:
    fast, slow = run(kernels=(99,), latency_ns=1000), run(kernels=(99, 1), latency_ns=100_000)
    both = run(kernels=(99, 1), results=(fast.results[0], slow.results[1]))
    (row,) = rows([both])
    assert row.percentile_us(50) == pytest.approx(1, rel=0.01)
    assert row.percentile_us(100) == pytest.approx(100)
    assert row.worst_p99_us == pytest.approx(100)


def test_memory_is_divided_by_the_clients_also_within_one_process() -> None:
    (row,) = rows([run(SharingMode.STREAMS, (1, 1, 1, 1), memory_mib={7: 600})])
    assert row.memory_mib == Spread(150.0, 150.0, 150.0)


def test_how_busy_the_gpu_was_is_that_of_the_repeats_that_know() -> None:
    (row,) = rows(
        [run(repeat=0, busy_percent=90.0), run(repeat=1, busy_percent=None), run(repeat=2, busy_percent=70.0)]
    )
    assert row.busy_percent == Spread(80.0, 70.0, 90.0)
    assert row.as_json()["gpu_busy_percent_median"] == 80.0


def test_in_the_middle_of_a_window_that_is_too_short_it_is_not_known() -> None:
    enough = 2 * SETTLED_SECONDS
    short = run(repeat=0, busy_percent=90.0, window=enough - 0.1)
    (row,) = rows([short, run(repeat=1, busy_percent=70.0, window=enough)])
    assert row.busy_percent == Spread(70.0, 70.0, 70.0)


def test_refused_runs_count_nowhere() -> None:
    (row,) = rows([run(repeat=0), run(repeat=1, kernels=(10**9, 1), refused="too fast")])
    assert row.repeats == 1


def test_a_run_in_which_nothing_ended_counts_nowhere() -> None:
    assert rows([run(kernels=(0, 0))]) == []


def test_rows_come_by_kind_grid_clients_and_mode() -> None:
    memory = Load(LoadKind.MEMORY, Grid.SMALL)
    table = rows([run(load=memory), run(SharingMode.MPS), run(SharingMode.TIME_SLICING), run(kernels=(1,))])
    assert [(row.case.load, row.case.clients, row.case.mode) for row in table] == [
        (SMALL, 1, SharingMode.MPS),
        (SMALL, 2, SharingMode.TIME_SLICING),
        (SMALL, 2, SharingMode.MPS),
        (memory, 2, SharingMode.MPS),
    ]
