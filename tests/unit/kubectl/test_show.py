"""What is printed: tables that can be read on a terminal and by programs, JSON, YAML and names."""

import io
import json

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from gpushare.kubectl.output.report import LEAST_UUID, Column, Report, Sentences, Short, Table, short_uuids
from gpushare.kubectl.output.show import Printer, UnknownColumnError, new_rows
from gpushare.kubectl.output.table import CUT, GAP, LEAST, MOST_TEXT, lines, plain_lines
from tests.unit.kubectl.cluster_objects import shown

UUIDS = ("GPU-11111111-aaaa", "GPU-11111111-bbbb", "GPU-22222222-cccc")
TABLE = Table(
    (
        Column("POD"),
        Column("NODE", dropped=1),
        Column("USED", figures=True),
        Column("MESSAGE"),
        Column("MORE", wide=True),
    ),
    [("a", "n1", "9Mi", "it is well", "x"), ("b", "n2", "100Mi", "it is not", "")],
)
REPORT = Report({"pods": ["a", "b"]}, [TABLE], names=["pod/a", "pod/b"])


def test_in_a_pipe_a_table_is_words_and_spaces_with_no_cell_empty() -> None:
    assert shown(REPORT, form="wide").splitlines() == [
        "POD  NODE  USED   MESSAGE     MORE",
        "a    n1    9Mi    it is well  x",
        "b    n2    100Mi  it is not   -",
    ]


@pytest.mark.parametrize(
    ("width", "header"), [(80, "POD  NODE  USED   MESSAGE"), (23, "POD  USED   MESSAGE"), (20, "POD  USED   MESSAGE")]
)
def test_on_a_narrow_terminal_the_least_useful_column_goes_first(width: int, header: str) -> None:
    shown_lines = shown(REPORT, width).splitlines()
    assert shown_lines[0] == header
    assert max(map(len, shown_lines)) <= width
    assert (CUT in "".join(shown_lines)) == (width == 20)


PROBLEMS = Table(
    (Column("OBJECT"), Column("MESSAGE", text=True)), [("node/n1", "the MPS daemon does not answer"), ("node/n2", "")]
)


def test_a_sentence_goes_below_its_row_where_the_terminal_is_too_narrow() -> None:
    assert lines(PROBLEMS, width=80)[1] == "node/n1  the MPS daemon does not answer"
    assert lines(PROBLEMS, width=24) == [
        "OBJECT",
        "node/n1",
        "    the MPS daemon does",
        "    not answer",
        "node/n2",
    ]


def test_of_a_name_that_is_cut_both_ends_are_left() -> None:
    table = Table((Column("POD"),), [("inference-6d5f9c7b8-x0k2p",), ("inference-6d5f9c7b8-x1k2p",)])
    assert lines(table, width=13)[1:] == ["infere…-x0k2p", "infere…-x1k2p"]


CELL = st.text(max_size=40)


@given(st.lists(st.tuples(CELL, CELL, CELL, CELL, CELL), max_size=5), st.integers(60, 200) | st.none())
def test_whatever_is_in_the_cells_each_row_is_one_line_that_fits(
    rows: list[tuple[str, ...]], width: int | None
) -> None:
    printed = lines(Table(TABLE.columns, rows), width=width)
    assert len(printed) == len(rows) + 1
    assert all(line.isprintable() for line in printed)
    least = len(TABLE.columns) * (LEAST + GAP)
    assert width is None or max(map(len, printed)) <= max(width, least)


def test_a_cell_is_shortened_but_for_wide() -> None:
    table = Report({}, [Table((Column("GPU"),), [(Short("GPU-1", UUIDS[0]),)])])
    assert shown(table).split() == ["GPU", "GPU-1"]
    assert shown(table, form="wide").split() == ["GPU", UUIDS[0]]


@given(st.sets(st.uuids().map(lambda uuid: f"GPU-{uuid}"), max_size=20) | st.just(set(UUIDS)))
def test_a_short_uuid_names_one_gpu(uuids: set[str]) -> None:
    short = short_uuids(uuids)
    assert set(short) == uuids
    for uuid, text in short.items():
        assert [other for other in uuids if other.startswith(text)] == [uuid]
        assert len(text) >= LEAST_UUID
        assert text.full == uuid


def test_json_yaml_and_names_are_those_and_nothing_else() -> None:
    assert json.loads(shown(REPORT, form="json")) == REPORT.data
    assert yaml.safe_load(shown(REPORT, form="yaml")) == REPORT.data
    assert shown(REPORT, form="name").split() == ["pod/a", "pod/b"]


def test_figures_are_sorted_from_the_largest_on_and_words_by_the_alphabet() -> None:
    def pods(by: str) -> list[str]:
        text = io.StringIO()
        Printer(headers=False, sort_by=by, out=text).show(REPORT)
        return [line.split()[0] for line in text.getvalue().splitlines()]

    assert pods("used") == ["b", "a"]
    assert pods("pod") == ["a", "b"]
    with pytest.raises(UnknownColumnError, match='"weight"; there are POD, NODE, USED'):
        pods("weight")


def test_what_is_missing_is_said_beside_the_output() -> None:
    out, notes = io.StringIO(), io.StringIO()
    Printer(out=out, notes=notes).show(Report({}, [Table(TABLE.columns, [], "no pod")]))
    assert (out.getvalue(), notes.getvalue()) == ("", "no pod\n")


def test_a_watch_prints_rows_that_are_new_or_changed() -> None:
    later = Report({}, [Table(TABLE.columns, [TABLE.rows[0], ("b", "n2", "7Mi", "it is", "")])])
    assert shown(new_rows(REPORT, later)).splitlines()[1:] == ["b    n2    7Mi   it is"]
    text = io.StringIO()
    Printer(sort_by="used", out=text, notes=text).show(new_rows(REPORT, REPORT))
    assert text.getvalue() == ""


def test_a_watch_does_not_mind_that_time_goes_by() -> None:
    columns = (Column("POD"), Column("AGE", moving=True))
    before, now = (Report({}, [Table(columns, [("a", age)])]) for age in ("1s", "2s"))
    assert shown(new_rows(before, now)) == ""


def test_a_sentence_is_broken_below_its_start_on_a_terminal_alone() -> None:
    report = Report({}, [Sentences([("Name: ", "one two three four five"), ("Age: ", "1s")])])
    assert shown(report).splitlines() == ["Name: one two three four five", "Age: 1s"]
    broken = shown(report, 16).splitlines()
    assert broken[0] == "Name: one two"
    assert all(line.startswith("      ") for line in broken[1:-1])
    assert "".join(broken).split() == ["Name:", "one", "two", "three", "four", "fiveAge:", "1s"]


def test_parts_are_apart_by_an_empty_line_unless_they_are_one_text() -> None:
    both = [Sentences([("", "a")]), Sentences([("", "b")])]
    assert shown(Report({}, both)) == "a\n\nb\n"
    assert shown(Report({}, both, together=True)) == "a\nb\n"


STEERS = "\x1b]0;owned\x07\x9b31m\u202egnp.exe\r$(reboot)`reboot`; reboot\n| a | b |"


@given(st.text(max_size=200))
@example(STEERS)
def test_no_text_of_a_tenant_steers_a_terminal_in_any_form(text: str) -> None:
    table = Table([Column("NAME"), Column("MESSAGE", text=True)], [(text, text)])
    report = Report(
        {"a": text}, [table, Sentences([("why: ", text)]), Sentences([("", text)], whole=True)], names=[text]
    )
    for form in ("", "wide", "json", "yaml", "name"):
        for width in (None, 40):
            text_shown = shown(report, width, form)
            assert all(character.isprintable() for line in text_shown.split("\n") for character in line), form
    assert json.loads(shown(report, form="json")) == {"a": text}
    assert all(character.isprintable() for line in plain_lines(text).split("\n") for character in line)


def test_what_is_said_beside_the_answer_is_bounded() -> None:
    assert len(plain_lines("x" * 1_000_000)) == MOST_TEXT + 1
