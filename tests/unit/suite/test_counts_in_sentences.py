"""A number before a noun is written by `gpushare.messages.wording`, which knows that there may be one of a thing."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.messages.wording import plural
from localcluster.paths import REPOSITORY

NOUNS = (
    "GPU", "slot", "client", "container", "pod", "node", "daemon", "process", "claim", "context", "sample", "problem",
    "copy",
)  # fmt: skip
BETWEEN = "MPS|CUDA|client|matching|more|older|other|ready|such|whole"
COUNTED = re.compile(rf" (?:(?:{BETWEEN}) )?(?:{'|'.join(plural(2, noun) for noun in NOUNS)})\b")
SOURCES = sorted((REPOSITORY / "operator" / "gpushare").rglob("*.py"))


def fixed_plurals(source: str) -> Iterator[str]:
    """Each value of an f-string that such a noun follows. Left out are names of constants, rounded figures, and what is
    repeated as a user wrote it."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant) or value.format_spec:
                continue
            name = ast.unparse(value.value)
            if not name.isupper() and not name.startswith("quoted(") and COUNTED.match(str(text.value)):
                yield f"{name}{text.value}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_no_sentence_has_a_plural_that_is_fixed(path: Path) -> None:
    assert list(fixed_plurals(path.read_text())) == []


@pytest.mark.parametrize(
    ("source", "fixed"),
    [
        ('f"{len(gpus)} GPUs"', ["len(gpus) GPUs"]),
        ('f"it has {wanted} MPS daemons now"', ["wanted MPS daemons now"]),
        ("f\"{count_of(wanted, 'GPU')} with clients\"", []),
        ('f"more than {MAX_PROCESSES} processes"', []),
        ('f"{gain:.2f} GPUs"', []),
        ('f"{name} runs"', []),
    ],
)
def test_a_fixed_plural_is_found(source: str, fixed: list[str]) -> None:
    assert list(fixed_plurals(source)) == fixed
