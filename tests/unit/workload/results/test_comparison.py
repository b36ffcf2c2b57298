"""The picture and the file of a comparison: what was measured, and no time that is not a GPU's."""

import json
from pathlib import Path

import pytest

from gpushare.kubectl.rules.trial.apply import yaml_lines
from gpushare.kubectl.rules.trial.cases import BARE, CaseOutcome, TrialMode, TrialPlan
from gpushare.kubectl.rules.trial.options import RunTimes
from gpushare.kubectl.rules.trial.records import TrialRecord
from gpushare_workload.reporting.figures.comparison import draw, save
from gpushare_workload.results.comparison import APPLY, Comparison, read, titled
from localcluster.paths import REPOSITORY
from tests.unit.kubectl.rules.trial.made_up import ALONE, case, failed, measured


def comparison(outcomes: tuple[CaseOutcome, ...], timed: bool = True) -> Comparison:
    gpu = {"product": "NVIDIA H100", "memory_mib": 81559}
    programs = [["python3", "yolos.py"]]
    record = TrialRecord(programs, TrialPlan(), RunTimes(1.0, None, 300.0), outcomes, timed, {"gpu": gpu})
    return Comparison(record, "yolos")


SHARED = (
    measured(ALONE, 100.0, p99=5.0),
    *(measured(case(mode, count), 80.0, p99=7.0) for mode in BARE for count in (2, 4)),
)


def test_each_mode_is_a_line_and_latency_has_a_panel_of_its_own(tmp_path: Path) -> None:
    figure = draw(comparison(SHARED))
    assert figure is not None
    assert len(figure.axes) == 2
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["in time slices", "under MPS", "under MPS with caps"]
    save(figure, tmp_path / "new" / "picture.png")
    assert (tmp_path / "new" / "picture.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("outcomes", "timed"), [(SHARED, False), ((measured(ALONE, 100.0),), True)], ids=["simulated", "only one alone"]
)
def test_there_is_no_picture_of_what_was_not_measured(outcomes: tuple[CaseOutcome, ...], timed: bool) -> None:
    assert draw(comparison(outcomes, timed)) is None


def test_copies_in_slots_of_a_share_are_a_line_too() -> None:
    trial = (measured(ALONE, 100.0), *(measured(case(TrialMode.SLOTS, count), 80.0) for count in (2, 4)))
    figure = draw(comparison(trial))
    assert figure is not None
    assert figure.axes[0].get_legend_handles_labels()[1] == ["in slots of the share"]


def test_of_a_pair_each_program_has_a_panel_with_its_own_latency() -> None:
    first, second = case(TrialMode.ALONE, 1, 0), case(TrialMode.ALONE, 0, 1)
    alone = [measured(first, 100.0, p99=5.0), measured(second, 50.0, p99=30.0)]
    figure = draw(comparison((*alone, measured(case(TrialMode.SLOTS, 1, 1), 45.0, p99=7.0))))
    assert figure is not None
    assert [panel.get_ylabel() for panel in figure.axes] == [
        "work, × each alone",
        "p99 of program 1, ms",
        "p99 of program 2, ms",
    ]
    lines = [panel.lines[0] for panel in figure.axes]
    assert [[round(float(value), 2) for value in line.get_ydata()] for line in lines] == [
        [1.0, 1.35],
        [5.0, 7.0],
        [30.0, 7.0],
    ]


def test_a_title_is_the_commands_without_their_folders() -> None:
    programs = (("/opt/bin/python3", "/work/serve.py", "--url", "/"), ("train", "x" * 100))
    assert titled(programs).startswith("python3 serve.py --url / beside train xxx")
    assert len(titled(programs)) == 90


def test_the_share_is_printed_as_yaml_to_apply() -> None:
    yaml = pytest.importorskip("yaml")
    compared = comparison((*SHARED, measured(case(TrialMode.MPS, 8), 80.0)))
    assert compared.share is not None
    text = compared.as_text()
    assert yaml.safe_load(text.partition(f"{APPLY}\n")[2]) == compared.share
    assert yaml.safe_load("\n".join(yaml_lines({"a": ['x"\\: y'], "b": {"c": 3}}))) == {"a": ['x"\\: y'], "b": {"c": 3}}


def test_an_earlier_comparison_is_judged_anew_from_its_file() -> None:
    earlier = comparison((*SHARED, failed(case(TrialMode.MPS, 8))))
    again = read(json.dumps(earlier.as_json()))
    assert again.as_json() == earlier.as_json() | {"share": again.share}
    assert again.as_text().partition("The share")[0] == earlier.as_text().partition("The share")[0]


@pytest.mark.parametrize(
    ("text", "words"), [("{", "Expecting"), ("{}", "the schema is None"), ("[]", "not a whole comparison")]
)
def test_a_file_that_is_no_comparison_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(text)


@pytest.mark.parametrize(
    "path",
    sorted((REPOSITORY / "measurements/results").glob("*/compare-*.json")),
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_published_comparisons_say_what_their_runs_say(path: Path) -> None:
    published = json.loads(path.read_text())
    assert published["timed"] is True
    assert json.loads(json.dumps(read(path.read_text()).as_json())) == published


def test_the_example_of_the_page_on_comparing_is_a_published_verdict() -> None:
    page = " ".join((REPOSITORY / "docs/compare.md").read_text().replace("\n> ", " ").split())
    yolos = json.loads((REPOSITORY / "measurements/results/h100/compare-yolos.json").read_text())
    assert yolos["verdict"]["sentence"] in page
