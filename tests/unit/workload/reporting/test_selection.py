"""The number of clients at which modes are compared, and the text of a ratio."""

from typing import Any

import pytest

from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.reporting.selection import compared_clients, times
from gpushare_workload.results.summary import rows
from tests.unit.workload.results.made_up import SMALL, run


def test_modes_are_compared_where_most_of_them_were_measured() -> None:
    def table(*cases: tuple[SharingMode, int]) -> list[Any]:
        return rows([run(mode, (1,) * clients) for mode, clients in cases])

    everywhere = [(mode, clients) for mode in (SharingMode.MPS, SharingMode.TIME_SLICING) for clients in (1, 8, 16)]
    assert compared_clients(table(*everywhere), SMALL) == 8
    assert compared_clients(table(*everywhere, (SharingMode.STREAMS, 16)), SMALL) == 16
    assert compared_clients(table((SharingMode.MPS, 2), (SharingMode.MPS, 4)), SMALL) == 4
    assert compared_clients([], SMALL) is None


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.5, "1.50×"), (26.84, "26.8×"), (120.4, "120×"), (0.5, "0.500×"), (1234.5, "1,234×")]
)
def test_a_ratio_has_three_digits(ratio: float, text: str) -> None:
    assert times(ratio) == text
