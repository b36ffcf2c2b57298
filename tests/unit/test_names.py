"""No class name stands for two things in the operator, the workload and the local cluster."""

import ast
from collections import defaultdict

from localcluster.paths import REPOSITORY

TREES = ("operator/gpushare", "workload/gpushare_workload", "localcluster")
GENERATED = REPOSITORY / "operator/gpushare/agent/proto"


def places_by_name() -> dict[str, list[str]]:
    """`path:line` of each class definition, nested ones included."""
    places = defaultdict(list)
    for tree in TREES:
        for path in sorted((REPOSITORY / tree).rglob("*.py")):
            if GENERATED in path.parents:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{path.relative_to(REPOSITORY)}:{node.lineno}")
    return places


def test_no_class_name_stands_for_two_things() -> None:
    assert {name: places for name, places in places_by_name().items() if len(places) > 1} == {}
