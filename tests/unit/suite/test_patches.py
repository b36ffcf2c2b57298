"""No test replaces a part of the code under test: what a test must decide is handed in, as in operation."""

import ast
from collections.abc import Iterator

import pytest

from localcluster.paths import REPOSITORY

PATCHES = {"setattr", "delattr", "setitem", "delitem"}
"""Methods of pytest's MonkeyPatch, but for those of the environment and of the working directory."""
OF_THE_STANDARD_LIBRARY = {("tempfile", "tempdir"), ("ssl", "create_default_context")}
"""Its documentation says to set the first; the second stands for that of a newer Python, which is stricter."""


def patches(source: str) -> Iterator[int]:
    """The lines of a test's source that replace an attribute or an item of something by a MonkeyPatch."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PATCHES:
            words = tuple(ast.unparse(argument).strip("'") for argument in node.args[:2])
            if words not in OF_THE_STANDARD_LIBRARY:
                yield node.lineno


def test_no_test_patches_what_it_tests() -> None:
    folder = REPOSITORY / "tests"
    patched = [
        f"{path.relative_to(folder)}:{line}" for path in folder.rglob("*.py") for line in patches(path.read_text())
    ]
    assert patched == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("monkeypatch.setattr(module, 'LIMIT', 3)", [1]),
        ("def test(monkeypatch):\n    monkeypatch.setattr('shutil.rmtree', busy)", [2]),
        ("with monkeypatch.context() as patched:\n    patched.setitem(module.TABLE, 'a', 1)", [2]),
        ("monkeypatch.setattr(tempfile, 'tempdir', base)", []),
        ("monkeypatch.setattr(ssl, 'create_default_context', strict)", []),
        ("monkeypatch.setenv('TMPDIR', base)", []),
    ],
)
def test_a_patch_is_found_by_its_method(source: str, lines: list[int]) -> None:
    assert list(patches(source)) == lines
