"""The slowdowns of `mix`."""

from pathlib import Path

from gpushare_workload.reporting.files import read
from gpushare_workload.reporting.heatmap import slowdowns
from tests.unit.workload.reporting.inputs import mix, written


def test_a_pair_measured_twice_has_its_median(tmp_path: Path) -> None:
    lines = (mix("a", "a", 1.0), mix("a", "a", 3.0), mix("a", "b", 1.5), mix("a", None, 1.0))
    kinds, found = slowdowns(read(written(tmp_path, lines=lines)).pairs)
    assert (kinds, found) == (["a"], {("a", "a"): 2.0, ("a", "b"): 1.5})
