"""Completion: what a shell suggests after the words so far."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpushare.kubectl.completion import complete
from gpushare.kubectl.main import COMMANDS, parser_for
from tests.unit.kubectl import stand_in


@pytest.fixture
def suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """The suggestions and the directive, with a kubectl that knows two pods, shares or namespaces, all named alike."""
    items = [{"metadata": {"name": name}} for name in ("one", "other")]
    stand_in.make(tmp_path, {"": (200, {"items": items})})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def run(*words: str) -> tuple[list[str], str]:
        assert complete(parser_for, words) == 0
        *suggestions, directive = capsys.readouterr().out.splitlines()
        return suggestions, directive

    return run


@pytest.mark.parametrize(
    ("words", "suggestions", "directive"),
    [
        ([""], sorted(COMMANDS), ":4"),
        (["st"], ["status"], ":4"),
        (["status", "--sort"], ["--sort-by"], ":4"),
        (["status", "-o", ""], ["json", "name", "wide", "yaml"], ":4"),
        (["describe", ""], ["node", "pod", "share"], ":4"),
        (["describe", "share", "ot"], ["other"], ":4"),
        (["describe", "pod", "-n", "ml", "o"], ["one", "other"], ":4"),
        (["top", "--share", ""], ["one", "other"], ":4"),
        (["top", "-n", "on"], ["one"], ":4"),
        (["why", ""], ["one", "other"], ":4"),
        (["plan", ""], [], ":0"),
        (["trial", "--bes"], ["--beside"], ":4"),
        (["trial", "-f", ""], [], ":0"),
        (["trial", "-f", "job.yaml", "--beside", ""], [], ":0"),
        (["trial", "-f", "job.yaml", "--share", ""], ["one", "other"], ":4"),
        (["status", ""], [], ":4"),
    ],
)
def test_each_word_has_its_suggestions(
    suggested: Any, words: Sequence[str], suggestions: list[str], directive: str
) -> None:
    assert suggested(*words) == (suggestions, directive)


def test_names_are_those_of_the_context_and_namespace_that_were_named(suggested: Any, tmp_path: Path) -> None:
    suggested("why", "--context", "far", "-n", "ml", "")
    run, question, *_ = stand_in.asked(tmp_path)
    assert question == "GET /api/v1/namespaces/ml/pods"
    assert "--context=far" in run
