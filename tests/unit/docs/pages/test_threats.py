"""The threat model names what proves it: every test that it names is there, and every threat has one.

What remains is one table of docs/security.md, whose rows are whole.
"""

import ast
import re
from functools import cache

import pytest

from localcluster.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "threats.md").read_text()
SECURITY = (REPOSITORY / "docs" / "security.md").read_text()
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


def test_what_remains_says_who_can_and_what_bounds_it() -> None:
    section = re.search(r"^## What remains\n(.*?)^## ", SECURITY, re.MULTILINE | re.DOTALL)
    assert section is not None
    head, _, *rows = [line.strip("| ").split(" | ") for line in section[1].splitlines() if line.startswith("|")]
    assert head == ["risk", "who can", "what bounds it", "how to close it", "accepted by default"]
    for row in rows:
        assert len(row) == len(head), row
        assert all(row), row
        assert re.match(r"\*\*[^*]+\*\*", row[0]), f"a risk has a name: {row[0]}"
        assert row[-1] == "yes" or re.search(r"^no: .*`.*` opens it$|^no: \[`.*`\]\(.*\) opens it$", row[-1]), row[-1]
