"""Numbers and names in sentences."""

import pytest

from gpushare.messages import wording


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "slot", "0 slots"),
        (1, "slot", "1 slot"),
        (2, "MPS daemon", "2 MPS daemons"),
        (1, "process", "1 process"),
        (3, "process", "3 processes"),
        (1, "copy", "1 copy"),
        (4, "copy", "4 copies"),
    ],
)
def test_a_number_of_things(number: int, noun: str, text: str) -> None:
    assert wording.count_of(number, noun) == text


def test_of_many_names_the_first_are_listed_and_the_rest_counted() -> None:
    assert wording.first_names(["ml/b", "ml/a"], 2) == "ml/b, ml/a"
    assert wording.first_names(["ml/b", "ml/a", "ml/c"], 2) == "ml/b, ml/a and 1 more"


def test_named_things_are_of_the_number_of_their_names() -> None:
    assert wording.named("pod", ["ml/a"], 2) == "pod ml/a"
    assert wording.named("pod", ["ml/a", "ml/b", "ml/c"], 2) == "pods ml/a, ml/b and 1 more"


def test_one_is_and_others_are() -> None:
    assert [wording.are(number) for number in (0, 1, 2)] == ["are", "is", "are"]
