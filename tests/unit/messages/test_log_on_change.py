"""A problem met again and again is one line in the log."""

import logging
from collections.abc import Callable

import pytest

from gpushare.messages.log_on_change import LogOnChange

LOG = logging.getLogger("a.module")

Step = Callable[[LogOnChange], object]


def problem(text: str, key: str = "") -> Step:
    return lambda changes: changes.log("trying again: %s", text, key=key)


def clear(key: str = "", recovery: str = "") -> Step:
    return lambda changes: changes.clear(key, recovery)


BOTH = [problem("refused", "a"), problem("refused", "b")]

CASES = {
    "the first problem is logged": ([problem("refused")], ["trying again: refused"]),
    "the same problem is logged once": ([problem("refused")] * 3, ["trying again: refused"]),
    "another problem is logged": (
        [problem("refused"), problem("timeout"), problem("refused")],
        ["trying again: refused", "trying again: timeout", "trying again: refused"],
    ),
    "a problem that comes back after it was over is logged": (
        [problem("refused"), clear(), problem("refused")],
        ["trying again: refused", "trying again: refused"],
    ),
    "keys do not hide each other's problems": (
        [problem("refused", "a"), problem("refused", "b"), problem("refused", "a")],
        ["trying again: refused", "trying again: refused"],
    ),
    "the end of a problem is logged where there was one": (
        [clear(recovery="back"), problem("refused"), clear(recovery="back"), clear(recovery="back")],
        ["trying again: refused", "back"],
    ),
    "the end of a key's problem leaves the others": (
        [problem("refused", "a"), problem("refused", "b"), clear("a"), problem("refused", "b")],
        ["trying again: refused", "trying again: refused"],
    ),
    "a problem of a key that was not kept is logged again": (
        [problem("refused", "a"), problem("refused", "b"), lambda changes: changes.keep({"a"}), *BOTH],
        ["trying again: refused"] * 3,
    ),
    "a percent sign in a message without arguments is text": (
        [lambda changes: changes.log("at 100%"), lambda changes: changes.log("at 100%")],
        ["at 100%"],
    ),
}


@pytest.mark.parametrize(("steps", "lines"), CASES.values(), ids=CASES)
def test_log_on_change(steps: list[Step], lines: list[str], caplog: pytest.LogCaptureFixture) -> None:
    changes = LogOnChange(LOG)
    with caplog.at_level(logging.INFO, "a.module"):
        for step in steps:
            step(changes)
    assert [record.getMessage() for record in caplog.records] == lines


def test_problems_have_their_level_and_recoveries_are_information(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes = LogOnChange(LOG, logging.ERROR)
    with caplog.at_level(logging.INFO, "a.module"):
        assert changes.log("lost")
        assert not changes.log("lost")
        assert changes.clear("", "back")
        assert not changes.clear("", "back")
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
