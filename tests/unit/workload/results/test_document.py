"""The file of a benchmark: it survives JSON, and other files are refused with the reason."""

import json
from typing import Any

import pytest

from gpushare_workload.backend.work import Grid, Load, LoadKind
from gpushare_workload.results.document import Document, Run
from tests.unit.workload.results.made_up import document, run


def test_a_document_survives_json() -> None:
    whole = document(
        run(
            memory_mib={1: 2},
            busy_percent=55.0,
            warnings=("w",),
            load=Load(LoadKind.COMPUTE, Grid.HALF, 16, graph=True),
        )
    )
    again = Document.from_json(json.loads(json.dumps(whole.as_json())))
    assert again.as_json() == whole.as_json()
    assert isinstance(again.runs[0], Run)
    assert again.runs[0].busy_percent == 55.0
    assert again.runs[0].load == Load(LoadKind.COMPUTE, Grid.HALF, 16, graph=True)


def test_a_file_from_before_the_utilisation_was_recorded_is_read() -> None:
    earlier = document(run()).as_json()
    for each in earlier["runs"]:
        del each["gpu_busy_percent"]
    assert Document.from_json(earlier).runs[0].busy_percent is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "gpushare.dev/bench/v1"}, "the schema is 'gpushare.dev/bench/v1', not 'gpushare.dev/bench/v2'"),
        ({"runs": [{}]}, "not a whole result of the benchmark: KeyError"),
        ({"plan": None}, "not a whole result of the benchmark: TypeError"),
    ],
)
def test_a_file_that_is_no_result_says_what_is_wrong(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Document.from_json({**document(run()).as_json(), **change})
