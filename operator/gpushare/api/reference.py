"""docs/api.md: every field with type, default, bounds and meaning, from the schema that the API server enforces."""

import json
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_HEAD = """# API reference

Generated from the definitions in `crds/` by `make crds`; `kubectl explain gpushare.spec` says the same.
"""
_BOUNDS = (("minimum", "≥ {}"), ("maximum", "≤ {}"), ("maxItems", "≤ {} items"))


def markdown(definitions: list[Schema]) -> str:
    """The page for these CustomResourceDefinitions, in their order."""
    return "\n".join([_HEAD, *(section(definition) for definition in definitions)])


def section(definition: Schema) -> str:
    names = definition["spec"]["names"]
    version = definition["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [
        f"## {names['kind']}",
        "",
        f"{schema.get('description', '')} Short: `{'`, `'.join(names['shortNames'])}`.",
        "",
    ]
    for part in ("spec", "status"):
        lines += [f"### {part}", "", "| field | type | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [_row(*field) for field in fields(schema["properties"][part])]
        lines += ["", *_rules(schema["properties"][part], part)]
    return "\n".join(lines)


def fields(schema: Schema, prefix: str = "") -> Iterator[tuple[str, Schema]]:
    """(path, schema) of every field below `schema`, depth first; lists are written `name[]`."""
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield path, field
        inner, suffix = (field["items"], "[]") if field.get("type") == "array" else (field, "")
        yield from fields(inner, f"{path}{suffix}.")


def _row(path: str, field: Schema) -> str:
    default = field.get("default")
    shown = "" if default in (None, {}, [], "") else f"`{json.dumps(default)}`"
    meaning = " ".join([field.get("description", ""), *_bounds(field)]).strip().replace("|", "\\|")
    return f"| `{path}` | {_type(field)} | {shown} | {meaning} |"


def _type(field: Schema) -> str:
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    if field.get("type") == "object" and "additionalProperties" in field:
        return f"map of {_type(field['additionalProperties'])}"
    return str(field.get("type", "any"))


def _bounds(field: Schema) -> Iterator[str]:
    if "enum" in field:
        yield f"One of {', '.join(f'`{value}`' for value in field['enum'])}."
    bounds = [text.format(field[key]) for key, text in _BOUNDS if key in field]
    if bounds:
        yield f"({', '.join(bounds)})"


def _rules(schema: Schema, where: str) -> list[str]:
    """What is checked beyond types and bounds, at any depth."""
    schemas = [(where, schema), *((f"{where}.{path}", field) for path, field in fields(schema))]
    sentences = [
        f"- `{path}`: {rule['message']}"
        for path, field in schemas
        for rule in field.get("x-kubernetes-validations", [])
    ]
    return [*sentences, ""] if sentences else []
