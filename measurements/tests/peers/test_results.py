"""Results of a way: what is measured stays, whatever ends the call, and figures of another machine never mix in."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from measurements.gpu.stack.bring import Record
from measurements.peers.results import Results

H200 = {"product": "NVIDIA H200", "driver": "580.159.04"}
RECORD = Record(False, "sources", "operator:1", "clients:1", H200)


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    return {name: tmp_path / name for name in ("out", "known", "kept")}


def results(folders: dict[str, Path], record: Record = RECORD) -> Results:
    return Results("gpushare", record, **folders)


def written(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "peers-gpushare.json").read_text())
    return document


def test_a_case_is_written_at_once_with_its_time_to_both_places(folders: dict[str, Path]) -> None:
    results(folders).done("users", {"uids": 4}, 12.34)
    for name in ("out", "kept"):
        assert written(folders[name])["cases"] == {"users": {"uids": 4}}
        assert written(folders[name])["measured"]["users"]["seconds"] == 12.3


def test_a_later_call_goes_on_even_if_its_folder_is_empty(folders: dict[str, Path], tmp_path: Path) -> None:
    results(folders).done("users", {"uids": 4}, 1)
    later = results(folders | {"out": tmp_path / "another"})
    assert later.is_done("users")
    later.done("starts", {}, 1)
    assert set(written(tmp_path / "another")["cases"]) == {"users", "starts"}


def test_figures_of_an_earlier_version_stay_until_measured_again(folders: dict[str, Path]) -> None:
    results(folders).done("users", {"uids": 4}, 1)
    newer = results(folders, dataclasses.replace(RECORD, workload_image="clients:2"))
    assert not newer.is_done("users")
    newer.done("starts", {}, 1)
    assert written(folders["out"])["cases"]["users"] == {"uids": 4}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(dataclasses.replace(RECORD, simulated=True), id="a rehearsal"),
        pytest.param(dataclasses.replace(RECORD, truth=H200 | {"product": "NVIDIA H100"}), id="another GPU"),
        pytest.param(dataclasses.replace(RECORD, truth=H200 | {"driver": "595.1"}), id="another driver"),
    ],
)
def test_figures_of_another_machine_are_left_behind(folders: dict[str, Path], other: Record) -> None:
    results(folders).done("users", {"uids": 4}, 1)
    later = results(folders, other)
    later.done("starts", {}, 1)
    assert set(written(folders["out"])["cases"]) == {"starts"}


def test_figures_in_the_repository_are_gone_on_with(folders: dict[str, Path]) -> None:
    folders["known"].mkdir()
    earlier = {"cases": {"users": {"uids": 4}}, "simulated": False, "truth": H200}
    (folders["known"] / "peers-gpushare.json").write_text(json.dumps(earlier))
    again = results(folders)
    assert not again.is_done("users"), "nobody knows of which version they are"
    again.done("starts", {}, 1)
    assert set(written(folders["out"])["cases"]) == {"users", "starts"}


def test_a_case_that_fails_leaves_no_figures_of_before(folders: dict[str, Path]) -> None:
    results(folders).done("users", {"uids": 4}, 1)
    again = results(folders)
    again.failed("users", TimeoutError("too long"))
    assert written(folders["out"])["cases"] == {}
    assert written(folders["out"])["failed"] == {"users": "TimeoutError: too long"}
    assert not results(folders).is_done("users")
