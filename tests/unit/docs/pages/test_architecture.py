"""The page of the architecture names what is in the code; its walks go as the code does, and stay short."""

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

from gpushare.mps.layout import GpuDir
from localcluster.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "architecture.md").read_text()
ROOTS = (REPOSITORY / "operator" / "gpushare", REPOSITORY / "workload" / "gpushare_workload")
PACKAGE = ROOTS[0]
LOOPS = "agent/agent.py"
"""The agent's loops are listed there, so a step that begins one is named in no earlier file of the walk."""
WALKED = ("Allocate", "An attach", "A departing pod", "A change of limits", "A write of the operator", "`compare`")
MOST_FILES = 7
MOST_FILES_OF_ALLOCATE = 5
STEP = re.compile(r"^\d+\. `(?P<file>[\w/]+\.py): (?P<name>[\w.]+)` — \S.*\.$")

Step = tuple[str, str]
"""(file below one of ROOTS, name of a class or function in it)."""
Walk = tuple[str, str]
"""(title, process)."""


def walks(page: str) -> dict[Walk, list[str]]:
    """The numbered items below the name of each process, each as one line."""
    section = page.partition("\n## Walks through the code")[2].partition("\n## ")[0]
    steps: dict[Walk, list[str]] = {}
    title = process = ""
    for line in section.splitlines():
        if line.startswith("### "):
            title, process = line[4:], ""
        elif line.startswith("**"):
            process = line.strip("*")
        elif re.match(r"\d+\. ", line):
            steps.setdefault((title, process), []).append(line)
        elif line.startswith("  ") and (title, process) in steps:
            steps[title, process][-1] += " " + line.strip()
    return steps


def step_of(line: str) -> Step:
    match = STEP.match(line)
    assert match is not None, f"not of the form 'N. `file.py: Name.method` — what it does.': {line}"
    return match["file"], match["name"]


def source(file: str, roots: tuple[Path, ...] = ROOTS) -> str:
    """Empty: there is no such file."""
    return next((path.read_text() for root in roots if (path := root / file).is_file()), "")


def defined(text: str) -> set[str]:
    """Classes, functions and methods of a module, as `Class`, `function`, `Class.method`."""

    def names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from names(node.body, f"{prefix}{node.name}.")

    return set(names(ast.parse(text).body))


def used(text: str) -> set[str]:
    """The names and attributes that a module's code reads."""
    tree = ast.walk(ast.parse(text))
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in tree
        if isinstance(node, ast.Name | ast.Attribute)
    }


def missing(steps: list[Step]) -> list[str]:
    """The steps whose file, class or function is not in the code."""
    return [f"{file}: {name}" for file, name in steps if name not in defined(source(file))]


def uncalled(steps: list[Step]) -> list[str]:
    """The steps after the first whose function is used neither in their own file nor in that of an earlier step."""
    missing = []
    for number, (file, name) in enumerate(steps[1:], start=1):
        files = {LOOPS, *(earlier for earlier, _ in steps[: number + 1])}
        if not any(name.rpartition(".")[2] in used(source(item)) for item in files):
            missing.append(f"{file}: {name}")
    return missing


WALKS = {walk: [step_of(line) for line in lines] for walk, lines in walks(PAGE).items()}
IDS = [f"{title.partition(':')[0]}, {process}" for title, process in WALKS]


def test_the_walks_of_the_page_are_those_that_a_stranger_needs() -> None:
    assert tuple(dict.fromkeys(title.partition(":")[0] for title, _ in WALKS)) == WALKED
    assert all(process for _, process in WALKS)


@pytest.mark.parametrize("walk", WALKS, ids=IDS)
def test_every_step_of_a_walk_is_in_the_code(walk: Walk) -> None:
    assert WALKS[walk]
    assert missing(WALKS[walk]) == []


@pytest.mark.parametrize("walk", WALKS, ids=IDS)
def test_every_step_of_a_walk_is_called_from_an_earlier_file(walk: Walk) -> None:
    assert uncalled(WALKS[walk]) == []


@pytest.mark.parametrize("walk", WALKS, ids=IDS)
def test_a_walk_stays_within_a_few_files(walk: Walk) -> None:
    files = {file for file, _ in WALKS[walk]}
    most = MOST_FILES_OF_ALLOCATE if walk[0].startswith("Allocate") else MOST_FILES
    assert len(files) <= most, sorted(files)


def test_the_steps_of_a_walk_are_numbered_in_order() -> None:
    for walk, lines in walks(PAGE).items():
        assert [int(line.partition(".")[0]) for line in lines] == list(range(1, len(lines) + 1)), walk


def test_every_name_outside_of_the_walks_is_in_the_code() -> None:
    named = re.findall(r"`(agent/[\w/]+\.py)`: `([\w.]+)`", PAGE)
    assert named
    assert missing(named) == []


def test_every_module_that_the_page_names_is_there() -> None:
    modules = set(re.findall(r"`gpushare\.([a-z_.]+)`", PAGE))
    assert modules
    lacking = {name for name in modules if not _is_module(PACKAGE.joinpath(*name.split(".")))}
    assert lacking == set()


def _is_module(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize(
    "step",
    [
        ("agent/gone.py", "Agent"),
        ("agent/kubelet/slots.py", "Gone"),
        ("agent/kubelet/slots.py", "SlotDevices.gone"),
    ],
    ids=["file", "class", "method"],
)
def test_a_step_that_is_not_in_the_code_is_found(step: Step) -> None:
    assert missing([step, ("agent/kubelet/slots.py", "SlotDevices.edits")]) == [f"{step[0]}: {step[1]}"]


def test_a_step_that_no_earlier_file_calls_is_found() -> None:
    first, second = ("agent/kubelet/slots.py", "SlotDevices.edits"), ("agent/gpus/devices.py", "Devices.allocated")
    assert uncalled([first, second]) == []
    assert uncalled([second, ("agent/kubelet/slots.py", "SlotDevices.not_ready")]) == [
        "agent/kubelet/slots.py: SlotDevices.not_ready"
    ]


def test_the_page_has_each_file_of_the_gpu_directory() -> None:
    table = PAGE.partition("\n## The GPU directory")[2].partition("\n## ")[0]
    directory = GpuDir(Path("/run/gpushare/GPU-0"))
    paths = [getattr(directory, name) for name, kind in vars(GpuDir).items() if isinstance(kind, cached_property)]
    written = {str(path.relative_to(directory.path)) for path in paths}
    parents = {path.partition("/")[0] for path in written if "/" in path}
    assert written
    assert {
        path for path in written - parents if f"`{path}" not in table and f"`{Path(path).parts[0]}/`" not in table
    } == set()
