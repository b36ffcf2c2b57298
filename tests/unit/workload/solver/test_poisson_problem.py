"""The Poisson problem with a known answer: its slabs, and the bound of the error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_workload.solver.poisson_problem import PoissonProblem


@given(size=st.integers(1, 40), data=st.data())
def test_the_slabs_cover_every_inner_row_once_and_overlap_by_their_halos(size: int, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, size))
    slabs = PoissonProblem(size).slabs(parts)
    assert [row for rows in slabs for row in range(rows.start + 1, rows.stop - 1)] == list(range(1, size + 1))
    assert all(rows.stop - rows.start >= 3 for rows in slabs)


@pytest.mark.parametrize("parts", [0, 4])
def test_more_processes_than_rows_are_refused(parts: int) -> None:
    with pytest.raises(ValueError, match=f"{parts} processes for 3 rows"):
        PoissonProblem(3).slabs(parts)


def test_the_error_bound_shrinks_with_the_grid_and_the_last_change() -> None:
    assert (
        PoissonProblem(20).error_bound(0.0) < PoissonProblem(10).error_bound(0.0) < PoissonProblem(10).error_bound(1e-3)
    )
