"""The name of a test is read in a list of hundreds: it is one short statement. A variable's says what it holds."""

import ast
from collections.abc import Callable, Iterator

import pytest

from localcluster.paths import REPOSITORY

MOST_CHARACTERS = 70
TREES = ("tests", "measurements/tests")
EMPTY_WORDS = frozenset({"it", "found", "one"})
"""Names of whatever a loop or a call gave."""


def long_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if function and node.name.startswith("test_") and len(node.name) > MOST_CHARACTERS:
            yield node.name


def empty_words(source: str) -> Iterator[str]:
    """LINE NAME of each variable and parameter of such a name."""
    for node in ast.walk(ast.parse(source)):
        stored = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""
        name = node.arg if isinstance(node, ast.arg) else stored
        if name in EMPTY_WORDS:
            yield f"{node.lineno} {name}"


def in_tests(rule: Callable[[str], Iterator[str]]) -> dict[str, list[str]]:
    """What breaks the rule, by file."""
    paths = [path for tree in TREES for path in sorted((REPOSITORY / tree).rglob("*.py"))]
    broken = {str(path.relative_to(REPOSITORY)): list(rule(path.read_text())) for path in paths}
    return {path: names for path, names in broken.items() if names}


def test_a_test_has_a_name_of_at_most_70_characters() -> None:
    assert in_tests(long_names) == {}


def test_a_variable_of_a_test_says_what_it_holds() -> None:
    assert in_tests(empty_words) == {}


def test_an_empty_word_is_seen_in_loops_lambdas_and_parameters() -> None:
    source = "[it for it in a]\nlambda one: one\ndef f(found): pass\none, b = c\nprint(it, found.one)"
    assert sorted(empty_words(source)) == ["1 it", "2 one", "3 found", "4 one"]


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
