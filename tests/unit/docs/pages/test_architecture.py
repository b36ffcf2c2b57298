"""The page of the architecture names what is in the code, and its walks stay short."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "architecture.md").read_text()
PACKAGE = REPOSITORY / "operator" / "gpushare"
MOST_FILES = 7
STEP = re.compile(r"^\d+\. `(?P<file>[\w/]+\.py): (?P<name>[\w.]+)` — \S.*\.$")

Step = tuple[str, str]
"""(file below the package, name of a class or function in it)."""


def walks(page: str) -> dict[str, list[str]]:
    """The numbered lines below each heading of the section."""
    section = page.partition("\n## Three walks")[2].partition("\n## ")[0]
    parts = re.split(r"^### (.*)$", section, flags=re.MULTILINE)[1:]
    return {
        title: [line for line in text.splitlines() if re.match(r"\d+\.", line)]
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def step_of(line: str) -> Step:
    found = STEP.match(line)
    assert found is not None, f"not of the form 'N. `file.py: Name.method` — what it does.': {line}"
    return found["file"], found["name"]


def defined(source: str) -> set[str]:
    """Classes, functions and methods of a module, as `Class`, `function`, `Class.method`."""

    def names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from names(node.body, f"{prefix}{node.name}.")

    return set(names(ast.parse(source).body))


def missing(steps: list[Step], package: Path) -> list[str]:
    """The steps whose file, class or function is not in the code."""
    return [
        f"{file}: {name}"
        for file, name in steps
        if not (package / file).is_file() or name not in defined((package / file).read_text())
    ]


WALKS = {title: [step_of(line) for line in lines] for title, lines in walks(PAGE).items()}


def test_an_allocation_a_departure_and_an_observation_are_walked() -> None:
    assert [title.partition(":")[0] for title in WALKS] == ["Allocate", "A departing pod", "An observation"]


@pytest.mark.parametrize("title", WALKS)
def test_every_step_of_a_walk_is_in_the_code(title: str) -> None:
    assert WALKS[title]
    assert missing(WALKS[title], PACKAGE) == []


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_stays_within_a_few_files(title: str) -> None:
    files = {file for file, _ in WALKS[title]}
    assert len(files) <= MOST_FILES, sorted(files)


def test_the_steps_of_a_walk_are_numbered_in_order() -> None:
    for title, lines in walks(PAGE).items():
        assert [int(line.partition(".")[0]) for line in lines] == list(range(1, len(lines) + 1)), title


def test_every_name_outside_of_the_walks_is_in_the_code() -> None:
    named = re.findall(r"`(agent/[\w/]+\.py)`: `([\w.]+)`", PAGE)
    assert named
    assert missing(named, PACKAGE) == []


def test_every_module_that_the_page_names_is_there() -> None:
    modules = set(re.findall(r"`gpushare\.([a-z_.]+)`", PAGE))
    assert modules
    lacking = {name for name in modules if not _is_module(PACKAGE.joinpath(*name.split(".")))}
    assert lacking == set()


def _is_module(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize(
    "step",
    [("agent/gone.py", "Agent"), ("agent/kubelet/slots.py", "Gone"), ("agent/kubelet/slots.py", "SlotDevices.gone")],
    ids=["file", "class", "method"],
)
def test_a_step_that_is_not_in_the_code_is_found(step: Step) -> None:
    assert missing([step, ("agent/kubelet/slots.py", "SlotDevices.edits")], PACKAGE) == [f"{step[0]}: {step[1]}"]
