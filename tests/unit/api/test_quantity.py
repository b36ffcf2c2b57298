"""Quantities: exactly what Kubernetes means, and nothing beyond what it can hold is ever computed."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity as reference

from gpushare.api.quantity import EXPONENTS, LONGEST, MIB, format_mib, parse_memory, parse_mib, parse_quantity

numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.decimals(0, 10**9, places=9).map(lambda value: f"{value:f}"),
)
suffixes = st.one_of(
    st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]),
    st.builds("{}{}".format, st.sampled_from("eE"), st.sampled_from(EXPONENTS)),
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("25", 25),
        ("+25", 25),
        ("-3", -3),
        ("1.5Gi", 3 * 2**29),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("250m", Fraction(1, 4)),
        ("1n", Fraction(1, 10**9)),
        ("1e3", 1000),
        ("1E-3", Fraction(1, 1000)),
        ("1E", 10**18),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_a_quantity_has_its_exact_value(text: str, value: Fraction) -> None:
    assert parse_quantity(text) == value


@given(numbers, suffixes)
def test_any_quantity_means_what_it_means_to_kubernetes_client(number: str, suffix: str) -> None:
    value = parse_quantity(number + suffix)
    assert float(value) == pytest.approx(float(reference(number + suffix)), rel=1e-9)


@pytest.mark.parametrize("exponent", ["999999", "999999999999", "19", "-10", "-999999", "+400"])
def test_an_exponent_that_kubernetes_cannot_hold_is_refused_by_its_text(exponent: str) -> None:
    with pytest.raises(ValueError, match="has an exponent beyond -9 to 18"):
        parse_quantity(f"1e{exponent}")


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1\n", "one", "1 Gi", "1GB", "0x10", "1_000", "nan", "inf", "--1", "1e", "1e1.5", "٣", "1ki", "."],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity of Kubernetes"):
        parse_quantity(text)


def test_a_long_text_is_refused_unread_and_shown_cut() -> None:
    with pytest.raises(ValueError, match="…") as refused:
        parse_quantity("9" * 1_000_000)
    assert len(str(refused.value)) < 2 * LONGEST


@given(st.text(max_size=100))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    try:
        value = parse_quantity(text)
    except ValueError:
        return
    assert abs(value) < 10 ** (LONGEST + EXPONENTS[-1])


@pytest.mark.parametrize(
    ("text", "size"), [("16Gi", 16 * 2**30), ("1536Mi", 1536 * MIB), ("1.5Gi", 1536 * MIB), ("2G", 2 * 10**9)]
)
def test_memory_is_whole_bytes(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("16GB", "'16GB' is not a memory quantity; write \"16Gi\""),
        ("16GiB", "'16GiB' is not a memory quantity; write \"16Gi\""),
        ("much", '\'much\' is not a memory quantity; write it like "16Gi" or "1536Mi"'),
        ("1e9", '\'1e9\' is not a memory quantity; write it like "16Gi" or "1536Mi"'),
        ("16Gi\n", '\'16Gi\\n\' is not a memory quantity; write it like "16Gi" or "1536Mi"'),
        ("0.3", "'0.3' is not a whole number of bytes"),
    ],
)
def test_other_memory_is_refused_with_how_to_write_it(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="is not") as refused:
        parse_memory(text)
    assert str(refused.value) == sentence


@given(st.integers(1, 2**20))
def test_mebibytes_are_written_so_that_they_are_read_back(mib: int) -> None:
    assert parse_mib(format_mib(mib)) == mib


def test_mebibytes_are_rounded_down() -> None:
    assert parse_mib("2G") == 1907
