"""The definitions are current, structural, bounded, and mean the same as the models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.api import crd
from gpushare.api.gpushare import GpuShare

ROOT = Path(__file__).parents[3]
Schema = dict[str, Any]
DOCUMENTS = crd.documents()
DEFINITIONS = {name: yaml.load(text, Loader=yaml.CSafeLoader) for name, text in DOCUMENTS.items()}


def schema_of(kind: str) -> Schema:
    (definition,) = [item for item in DEFINITIONS.values() if item["spec"]["names"]["kind"] == kind]
    schema: Schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def at(path: str) -> Schema:
    return dict(nodes(schema_of("GpuShare")))[path]


ALL_NODES = [
    pytest.param(node, id=f"{kind}{path}")
    for kind in ("GpuShare", "GpuNode")
    for part in ("spec", "status")
    for path, node in nodes(schema_of(kind)["properties"][part], f".{part}")
]


@pytest.mark.parametrize("folder", ["crds", "charts/gpushare/files/crds"])
def test_the_files_are_what_the_models_generate(folder: str) -> None:
    files = {path.name: path.read_text() for path in (ROOT / folder).glob("*.yaml")}
    assert files == DOCUMENTS, f"run: gpushare crds --output crds --output charts/gpushare/files/crds ({folder})"


@pytest.mark.parametrize("node", ALL_NODES)
def test_every_value_is_bounded_so_that_rules_cost_little(node: Schema) -> None:
    match node["type"]:
        case "string":
            assert {"maxLength", "enum", "format"} & node.keys()
        case "array":
            assert "maxItems" in node
            assert node["x-kubernetes-list-type"] in ("atomic", "map")
        case "object":
            assert "properties" in node or "maxProperties" in node
        case "integer" | "boolean":
            pass
        case other:
            pytest.fail(f"{other} has no place in a Kubernetes API")


@pytest.mark.parametrize("node", ALL_NODES)
def test_the_schema_is_structural(node: Schema) -> None:
    assert not {"$ref", "anyOf", "allOf", "oneOf", "title", "nullable", "const"} & node.keys()


@pytest.mark.parametrize(
    "node", [pytest.param(node, id=path) for path, node in nodes(schema_of("GpuShare")["properties"]["spec"], ".spec")]
)
def test_every_field_that_a_user_writes_is_explained(node: Schema, request: pytest.FixtureRequest) -> None:
    path = request.node.callspec.id
    if not path.endswith(("[]", "{}")):
        assert node["description"].endswith(".")


def test_a_status_has_no_defaults() -> None:
    for kind in ("GpuShare", "GpuNode"):
        assert [path for path, node in nodes(schema_of(kind)["properties"]["status"]) if "default" in node] == []


def test_defaults_of_the_server_are_those_of_the_model() -> None:
    least = {"perGpu": 8, "memory": {"default": "16Gi"}}
    model = GpuShare.model_validate({"metadata": {"name": "a"}, "spec": {"clients": least}}).wire()["spec"]
    spec: Schema = {"clients": dict(least)}
    _fill(spec, schema_of("GpuShare")["properties"]["spec"])
    assert _without_empty(model) == _without_empty(spec)


def _fill(value: Schema, schema: Schema) -> None:
    """The API server's defaulting (structural schema defaulting algorithm)."""
    for name, child in schema.get("properties", {}).items():
        if name not in value and "default" in child:
            value[name] = child["default"]
        if isinstance(value.get(name), dict):
            _fill(value[name], child)


def _without_empty(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kept = {name: _without_empty(child) for name, child in value.items()}
    return {name: child for name, child in kept.items() if child not in ({}, [])}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "name"),
        (".spec.delivery", "immutable"),
        (".spec", "sizes need delivery ResourceClaim"),
        (".spec", "threads.overcommit needs delivery ResourceClaim"),
        (".spec", "queue needs delivery DevicePlugin"),
        (".spec", "placement Spread needs delivery DevicePlugin"),
        (".spec", "threads must not exceed clients.threads.max"),
        (".spec", "memory must not exceed clients.memory.max"),
        (".spec", "memory must be at least 512Mi"),
        (".spec.clients", "60 MPS contexts"),
        (".spec.clients", "240 slots of a GPU"),
        (".spec.clients.queue", "is not within 1m and 24h"),
        (".spec.clients.queue", "is less than 2m"),
        (".spec.clients.threads", "exceeds max"),
        (".spec.clients.memory", "below 512Mi"),
        (".spec.clients.memory", "exceeds max"),
        (".spec.clients.memory.default", "is not a memory quantity"),
        (".spec.clients.memory.max", "is not a memory quantity"),
        (".spec.nodeSelector.matchExpressions[]", "need values"),
    ],
)
def test_a_rule_stands_where_it_is_needed(path: str, words: str) -> None:
    rules = at(path)["x-kubernetes-validations"]
    assert any(words in rule.get("messageExpression", rule["message"]) for rule in rules)


def test_assignments_are_a_map_so_that_a_gpu_has_one_share() -> None:
    assignments = schema_of("GpuNode")["properties"]["spec"]["properties"]["assignments"]
    assert assignments["x-kubernetes-list-map-keys"] == ["uuid"]


def test_a_user_sees_the_columns_that_matter() -> None:
    (share,) = [item for item in DEFINITIONS.values() if item["spec"]["names"]["kind"] == "GpuShare"]
    columns = share["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [column["name"].upper() for column in columns if not column.get("priority")]
    assert shown == ["GPUS", "SLOTS", "USED", "THREADS", "MEMORY", "READY", "REASON", "AGE"]
