"""The project's own pages and settings agree with the Makefile and with each other."""

import re

import pytest
import yaml

from localcluster.paths import REPOSITORY

MAKEFILE = (REPOSITORY / "Makefile").read_text()


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    rule = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert rule is not None
    return [line.strip().removeprefix("@") for line in rule[1].splitlines()]


def test_the_hooks_before_a_commit_run_the_commands_of_make_lint() -> None:
    (local,) = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    assert {hook["language"] for hook in local["hooks"]} == {"system"}
    entries = [hook["entry"].replace("$(make -s bin)", "$(BIN)") for hook in local["hooks"]]
    assert entries == [f"sh -c '{command}'" for command in recipe("lint")]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/releasing.md", "docs/testing.md"])
def test_every_make_target_that_a_page_names_exists(page: str) -> None:
    commands = re.findall(r"(?:`|^)make ([a-z-]+(?: [a-z-]+)*)", (REPOSITORY / page).read_text(), re.MULTILINE)
    known = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert {target for command in commands for target in command.split()} - known == set()


@pytest.mark.parametrize("form", ["bug", "feature"])
def test_an_issue_form_has_what_the_tracker_needs(form: str) -> None:
    body = yaml.safe_load((REPOSITORY / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml").read_text())
    assert body["name"]
    assert body["description"]
    identifiers = [part["id"] for part in body["body"] if part["type"] != "markdown"]
    assert len(identifiers) == len(set(identifiers)) > 0
    assert any(part.get("validations", {}).get("required") for part in body["body"])


def test_every_decision_record_has_its_number_and_is_in_the_index() -> None:
    folder = REPOSITORY / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    records = sorted(folder.glob("[0-9]*.md"))
    assert len(records) > 5
    for record in records:
        number, title = record.name[:4], record.read_text().splitlines()[0]
        assert re.fullmatch(rf"# 0*{int(number)}[.:] .+", title), record.name
        assert record.name in index
