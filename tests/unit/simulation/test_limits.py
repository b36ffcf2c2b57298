"""How MPS reads limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.simulation import limits

UUID = "GPU-0f0f0f0f-0000-5000-8000-000000000000"
GIB = 1 << 30


@pytest.mark.parametrize(
    ("percent", "sms"), [(100, 132), (50, 66), (25, 32), (20, 26), (12.5, 16), (10, 12), (6, 8), (1, 8)]
)
def test_sms_of_132(percent, sms):
    assert limits.enforced_sms(132, percent) == sms


@given(st.integers(8, 200), st.floats(0.01, 100))
def test_enforced_sms_are_even_at_least_8_and_never_above_the_share(sms, threads):
    enforced = limits.enforced_sms(sms, threads)
    assert 8 <= enforced <= sms
    assert enforced % 2 == 0 or enforced == sms
    assert enforced <= max(8, sms * threads / 100)


@pytest.mark.parametrize(("threads", "low", "high"), [(100, 520, 520), (50, 348, 348), (25, 148, 218), (12, 82, 146)])
def test_a_contexts_size_is_within_what_was_measured(threads, low, high):
    assert low <= limits.context_mib(threads) <= high


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_more_threads_never_take_a_smaller_context(first, other):
    low, high = sorted((first, other))
    assert limits.context_mib(low) <= limits.context_mib(high)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("4G", 4 * GIB),
        ("4GB", 4 * GIB),
        ("4g", 4 * GIB),
        ("4096M", 4 * GIB),
        ("4", 4 << 20),
        ("1.5G", 1 << 20),
        ("0", None),
        ("0G", None),
        ("garbage", None),
        ("", None),
    ],
)
def test_memory_values(text, limit):
    assert limits.memory_value(text) == limit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("512M", "512M"),
        ("1023M", "1023M"),
        ("1025M", "1G"),
        ("12000M", "11G"),
        ("100000000M", "97656G"),
        ("-1", "17179869183G"),
        ("garbage", ""),
    ],
)
def test_a_limit_is_shown_in_whole_gib(text, shown):
    assert limits.memory_text(limits.memory_value(text)).strip() == shown


@pytest.mark.parametrize(
    ("default", "variable", "limit"),
    [
        pytest.param(4, None, 4, id="no variable leaves the default"),
        pytest.param(4, "", 4, id="an empty variable leaves the default"),
        pytest.param(4, "0=100G", 4, id="a larger value leaves the default"),
        pytest.param(4, "0=2G", 2, id="a smaller value binds"),
        pytest.param(4, f"{UUID}=2G", 2, id="by UUID too"),
        pytest.param(None, "0=2G", 2, id="without a default the variable binds"),
        pytest.param(4, "garbage", None, id="garbage removes the default"),
        pytest.param(4, "0=garbage", None, id="a garbage value removes the default"),
        pytest.param(4, "0=0", None, id="0 removes the default"),
        pytest.param(4, "1=3G", None, id="an index that is not visible removes the default"),
        pytest.param(4, "GPU-0=2G", None, id="a foreign UUID removes the default"),
        pytest.param(4, "0=2G,garbage", None, id="a bad second entry removes every limit"),
    ],
)
def test_a_clients_memory_variable(default, variable, limit):
    given = limits.client_memory(default and default * GIB, variable, UUID)
    assert given == (limit and limit * GIB)


@given(st.floats(0.1, 100), st.one_of(st.none(), st.text(max_size=6), st.floats().map(str)))
def test_a_client_never_gets_more_threads_than_the_default(default, variable):
    assert 0 < limits.client_threads(default, variable) <= default
