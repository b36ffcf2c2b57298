"""Fixed amounts of work: what they count, what they must result in, and which figures cannot be."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpushare_workload.backend.on_numpy.tasks import compute
from gpushare_workload.backend.work import MOST_ITERATIONS, Grid, LoadKind, Peaks, Work, first_difference, implausible


@pytest.mark.parametrize(("grid", "blocks"), [(Grid.SMALL, 8), (Grid.HALF, 66), (Grid.SATURATING, 1056)])
def test_the_grids_are_those_of_the_published_table(grid: Grid, blocks: int) -> None:
    assert grid.blocks(132) == blocks


@pytest.mark.parametrize(
    ("work", "flops", "size"),
    [
        (Work(LoadKind.COMPUTE, blocks=2, iterations=10), 2 * 256 * 4 * 10 * 2, 0),
        (Work(LoadKind.MEMORY, blocks=3, elements=5), 2 * 15, 4 * 4 * 15),
        (Work(LoadKind.TRANSFER, blocks=3, elements=5), 0, 2 * 4 * 15),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_a_launch_counts_its_operations_and_bytes(work: Work, flops: int, size: int) -> None:
    assert (work.flops, work.bytes) == (flops, size)


@pytest.mark.parametrize("iterations", [1, 2, 77])
def test_the_closed_form_of_compute_is_what_its_steps_come_to(iterations: int) -> None:
    work = Work(LoadKind.COMPUTE, blocks=9, iterations=iterations)
    assert first_difference(compute(work), work.expected(1)) is None


def test_the_longest_chain_is_still_exact() -> None:
    last = Work(LoadKind.COMPUTE, blocks=4, iterations=MOST_ITERATIONS).expected(1).astype(np.float64)
    assert set(np.diff(last)) == {4.0}


def test_memory_work_adds_three_times_the_right_array_to_the_left() -> None:
    assert list(Work(LoadKind.MEMORY, blocks=1, elements=9).expected(1)) == [0, 1, 2, 3, 4, 5, 6, 7 + 3, 8 + 3]


@pytest.mark.parametrize("kind", list(LoadKind))
@given(launches=st.integers(0, 1 << 40), lost=st.integers(1, 1 << 20))
def test_no_number_of_lost_launches_gives_the_result_of_all(kind: LoadKind, launches: int, lost: int) -> None:
    work = Work(kind, blocks=1, elements=1031, iterations=7)
    assume(kind is not LoadKind.TRANSFER or lost % work.values)
    assert first_difference(work.expected(launches), work.expected(launches + lost)) is not None


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"blocks": 0}, "0 blocks"),
        ({"blocks": 1, "elements": 0}, "0 elements"),
        ({"blocks": 1, "iterations": 0}, "0 iterations"),
        ({"blocks": 1, "iterations": MOST_ITERATIONS + 1}, "which float can count"),
    ],
)
def test_work_out_of_bounds_is_refused(figures: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Work(LoadKind.COMPUTE, **figures)


def test_a_difference_names_the_first_wrong_value() -> None:
    got, expected = np.float32([1, 2, 9, 9]), np.float32([1, 2, 3, 4])
    assert "2 of 4 values are wrong; the first, at 2, is" in str(first_difference(got, expected))
    assert first_difference(got[:2], expected) == "(2,) values instead of (4,)"


H200 = Peaks(flops=67e12, bandwidth=4.9e12, link=128e9, cache=50 << 20)


@pytest.mark.parametrize(
    ("work", "per_second", "why"),
    [
        (Work(LoadKind.COMPUTE, 1056), 3_600, None),
        (Work(LoadKind.COMPUTE, 1056), 3_900, "FLOP/s are above"),
        (Work(LoadKind.MEMORY, 1056), 8_700, None),
        (Work(LoadKind.MEMORY, 1056), 9_000, "bytes/s of device memory are above"),
        (Work(LoadKind.MEMORY, 66), 1_000_000, None),
        (Work(LoadKind.TRANSFER, 66), 8_000, "bytes/s over the host link are above"),
    ],
    ids=["compute", "compute-above", "memory", "memory-above", "memory-in-cache", "transfer-above"],
)
def test_a_rate_above_the_gpus_peak_is_refused(work: Work, per_second: float, why: str | None) -> None:
    reason = implausible(work, per_second, H200)
    assert (reason is None) if why is None else (why in str(reason))


def test_without_known_peaks_no_rate_is_refused() -> None:
    assert implausible(Work(LoadKind.COMPUTE, 1056), 1e9, Peaks()) is None
