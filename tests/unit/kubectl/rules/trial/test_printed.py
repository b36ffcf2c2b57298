"""Figures are read from what a program prints, whatever else it prints."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kubectl.rules.trial.printed import (
    LINE_CHARACTERS,
    CopyFigures,
    FigureReader,
    NoFiguresError,
    PrintedFigures,
    lacks_memory,
    percentile,
)


def regex(text: str) -> FigureReader:
    reader = FigureReader.of("--rate", text, None)
    assert reader is not None
    return reader


def field(name: str) -> FigureReader:
    reader = FigureReader.of("--rate", None, name)
    assert reader is not None
    return reader


@pytest.mark.parametrize(
    ("reader", "line", "values"),
    [
        (regex(r"([\d.,]+) img/s"), "epoch 3: 1,234.5 img/s, 7 img/s", (1234.5, 7.0)),
        (regex(r"rate=(\S+)"), "rate=fast", ()),
        (regex(r"rate=(\S+)"), "rate=nan rate=inf rate=-1 rate=2e3", (2000.0,)),
        (field("rate"), '{"rate": 12}', (12.0,)),
        (field("a.b"), '{"a": {"b": [1, 2.5, "x", null, true]}}', (1.0, 2.5)),
        (field("a.b"), '{"a": 3}', ()),
        (field("rate"), "loading 12 %", ()),
        (field("rate"), '{"rate": 12', ()),
        (field("rate"), "{" * 20000, ()),
        (field("rate"), '{"rate": 1' + " " * LINE_CHARACTERS + "}", ()),
        (field("rate"), '{"rate": 1' + "0" * 400 + "}", ()),
    ],
)
def test_a_line_has_the_figures_that_are_meant_and_no_others(
    reader: FigureReader, line: str, values: tuple[float, ...]
) -> None:
    assert reader.values(line) == values


@given(st.text())
def test_no_line_is_too_strange_to_be_read(line: str) -> None:
    assert all(value >= 0 for value in (*field("a").values(line), *regex(r"(\S+)").values(line)))


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_a_number_in_a_json_field_is_that_number(value: float) -> None:
    assert field("rate").values(json.dumps({"rate": value})) == (value,)


@pytest.mark.parametrize(
    ("pattern", "name", "words"),
    [
        ("(", None, "--rate-regex '(': no regular expression"),
        ("rate", None, "has 0 groups; put the number"),
        ("(a)(b)", None, "has 2 groups"),
        ("(" + "a" * 600 + ")", None, "602 characters, at most 500"),
        ("(a)", "b", "give one of them"),
        (None, "a..b", "--rate-json 'a..b': write the name of a field"),
    ],
)
def test_a_reader_that_cannot_work_is_refused_by_its_option(pattern: str | None, name: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        FigureReader.of("--rate", pattern, name)


def lines(printed: PrintedFigures, *texts: tuple[float, str]) -> list:  # type: ignore[type-arg]
    return [figures for at, text in texts if (figures := printed.read(at, text)) is not None]


def test_the_rate_of_a_window_is_the_mean_of_the_rates_in_it() -> None:
    printed = PrintedFigures(regex(r"rate=(\S+)"), latency=regex(r"ms=(\S+)"))
    texts = [(1.0, "rate=1000 ms=9"), (2.0, "rate=10 ms=1"), (3.0, "ms=2"), (4.0, "rate=20"), (5.0, "rate=1000")]
    assert printed.within(lines(printed, *texts), 1.5, 4.5) == CopyFigures(15.0, (1.0, 2.0))


def test_counts_of_a_window_are_the_work_between_its_first_and_last_line() -> None:
    printed = PrintedFigures(regex(r"n=(\S+)"), counts=True)
    texts = [(1.0, "n=99"), (2.0, "n=99"), (4.0, "n=30"), (5.0, "n=30"), (9.0, "n=99")]
    assert printed.within(lines(printed, *texts), 1.5, 8.0).rate == 20.0


@pytest.mark.parametrize(
    ("counts", "rate"), [(False, 7.0), (True, 3.0)], ids=["the last rate", "the sum of the counts per second"]
)
def test_the_rate_of_a_whole_run(counts: bool, rate: float) -> None:
    printed = PrintedFigures(regex(r"n=(\S+)"), counts=counts)
    assert printed.whole(lines(printed, (1.0, "n=5"), (2.0, "n=7")), 4.0).rate == rate


def test_without_a_reader_the_rate_is_one_run_per_wall_time() -> None:
    assert PrintedFigures().whole([], 4.0).rate == 0.25


@pytest.mark.parametrize("counts", [False, True])
def test_a_window_without_figures_is_refused_with_what_to_do(counts: bool) -> None:
    printed = PrintedFigures(regex(r"n=(\S+)"), counts=counts)
    with pytest.raises(NoFiguresError, match="let the program print more often"):
        printed.within(lines(printed, (1.0, "n=5")), 2.0, 3.0)


def test_a_program_that_did_nothing_has_no_rate() -> None:
    printed = PrintedFigures(regex(r"n=(\S+)"))
    with pytest.raises(NoFiguresError, match="its rate is 0"):
        printed.whole(lines(printed, (1.0, "n=0")), 1.0)


def test_counts_need_something_to_count() -> None:
    with pytest.raises(ValueError, match="--counts: says what --rate-regex or --rate-json finds"):
        PrintedFigures(counts=True)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_is_one_of_the_values_with_as_many_below_it(values: list[float], percent: float) -> None:
    value_of = percentile(values, percent)
    assert value_of in values
    assert sum(value <= value_of for value in values) >= percent / 100 * len(values) - 1e-9  # type: ignore[operator]


@pytest.mark.parametrize(
    ("output", "memory"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate", True),
        ("cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory", True),
        ("ValueError: Free memory on device is less than desired GPU memory utilization", True),
        ("Segmentation fault", False),
        ("ModuleNotFoundError: No module named 'torch'", False),
    ],
)
def test_programs_that_got_no_gpu_memory_are_known_by_what_they_say(output: str, memory: bool) -> None:
    assert lacks_memory(output) is memory
