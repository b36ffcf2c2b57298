"""The threat model names what proves it: every test that it names is there, and every threat has one."""

import ast
import re
from functools import cache

import pytest

from localcluster.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "threats.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/.]+)::(\w+)`", PAGE)))
THREATS = re.findall(r"^## Threats by .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
ROWS = [line for section in THREATS for line in section.splitlines() if re.match(r"\| (?!threat|---)", line)]


@cache
def defined_in(file: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / file).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions)


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_the_threat_model_names_is_there(file: str, test: str) -> None:
    assert test.startswith("test_")
    assert test in defined_in(file)


def test_every_actor_has_threats_and_every_threat_a_test() -> None:
    assert len(THREATS) == 5
    assert len(ROWS) > 20
    for row in ROWS:
        threat, barrier, proof = row.strip("| ").split(" | ")
        assert threat
        assert barrier
        assert "`tests/" in proof, row
