"""Headlines and the environment."""

from gpushare_workload.bench.results.summary import rows
from gpushare_workload.reporting import texts
from tests.unit.workload.bench.made_up import document, run
from tests.unit.workload.reporting.inputs import SCALING


def test_headlines_are_mps_against_time_slicing() -> None:
    (headline,) = texts.headlines(rows(SCALING))
    assert (headline.figure, headline.text) == (
        "2.00×",
        "compute, 8 blocks: 2 clients under MPS against time-slicing; p99 50 µs instead of 50 µs",
    )


def test_a_value_of_the_environment_appears_once_if_files_agree() -> None:
    first = document(run(), environment={"gpu": {"product": "P", "driver": "1"}, "cpus": 4})
    second = document(run(), environment={"gpu": {"product": "P", "driver": "2"}, "cpus": 4})
    assert texts.environment([first, second]) == [
        ("backend", "cupy"),
        ("gpu product", "P"),
        ("gpu driver", "1, 2"),
        ("cpus", "4"),
    ]
