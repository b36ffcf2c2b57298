"""The name of a test is read in a list of hundreds: it is one short statement."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY

MOST_CHARACTERS = 70
TREES = ("tests", "measurements/tests")
LONGER_SO_FAR = (
    "measurements/tests/pages",
    "tests/unit/agent",
    "tests/unit/docs",
    "tests/unit/kube",
    "tests/unit/kubectl",
    "tests/unit/workload",
)
"""Folders with names from before the rule. One is taken off as soon as it keeps the rule, and none is added."""


def long_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if function and node.name.startswith("test_") and len(node.name) > MOST_CHARACTERS:
            yield node.name


def bound_files() -> Iterator[Path]:
    """Python files that the rule is held for, relative to the repository."""
    for tree in TREES:
        for path in sorted((REPOSITORY / tree).rglob("*.py")):
            file = path.relative_to(REPOSITORY)
            if not any(file.is_relative_to(folder) for folder in LONGER_SO_FAR):
                yield file


def test_a_test_has_a_name_of_at_most_70_characters() -> None:
    long = {str(file): names for file in bound_files() if (names := list(long_names((REPOSITORY / file).read_text())))}
    assert long == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (f"def test_{'a' * 65}(): pass", []),
        (f"def test_{'a' * 66}(): pass", [f"test_{'a' * 66}"]),
        (f"async def test_{'a' * 66}(): pass", [f"test_{'a' * 66}"]),
        (f"class TestIt:\n    def test_{'a' * 66}(self): pass", [f"test_{'a' * 66}"]),
        (f"def no_test_{'a' * 66}(): pass", []),
    ],
    ids=["short enough", "long", "asynchronous", "in a class", "no test"],
)
def test_a_long_name_is_found_wherever_the_test_stands(source: str, names: list[str]) -> None:
    assert list(long_names(source)) == names
