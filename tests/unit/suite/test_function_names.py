"""The name of a test is read in a list of hundreds: it is one short statement."""

import ast
from collections.abc import Iterator

import pytest

from localcluster.paths import REPOSITORY

MOST_CHARACTERS = 70
TREES = ("tests", "measurements/tests")


def long_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if function and node.name.startswith("test_") and len(node.name) > MOST_CHARACTERS:
            yield node.name


def test_a_test_has_a_name_of_at_most_70_characters() -> None:
    paths = [path for tree in TREES for path in sorted((REPOSITORY / tree).rglob("*.py"))]
    long = {str(path.relative_to(REPOSITORY)): list(long_names(path.read_text())) for path in paths}
    assert {path: names for path, names in long.items() if names} == {}


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
