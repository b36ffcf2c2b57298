"""CustomResourceDefinitions generated from the models: structural OpenAPI v3 schemas with bounds, defaults and rules.

Guarantees: what the API server accepts, the models parse. Not checked here: what depends on other objects (the
admission webhook checks that), nor what a certain GPU can take (the share's status says that).
"""

from typing import Any

import yaml

from gpushare.api import names
from gpushare.api.base import ApiModel, rule
from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare

Schema = dict[str, Any]

# In the order in which one reads a field. Other keys (titles, words of JSON schema alone) are left out.
_KEPT = (
    "description", "type", "format", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems",
    "maxItems", "maxProperties", "default", "required", "x-kubernetes-validations", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys", "items", "additionalProperties", "properties",
)  # fmt: skip
_LONGEST_NAME = 253

_SHARE_NAME = rule(
    f"self.metadata.name.matches('{names.SHARE_NAME_PATTERN}')",
    "a GpuShare's name becomes part of resource and label names: at most 40 characters of a-z, 0-9 and -, "
    "beginning with a letter and ending with a letter or digit",
    says="'name \"' + self.metadata.name + '\" cannot be used: it becomes part of resource and label names, so it "
    "needs at most 40 characters of a-z, 0-9 and -, beginning with a letter and ending with a letter or digit'",
    field=".metadata.name",
)


def _column(name: str, path: str, kind: str = "string", wide: bool = False) -> Schema:
    column = {"name": name, "type": kind, "jsonPath": path}
    return column | {"priority": 1} if wide else column


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


_AGE = _column("Age", ".metadata.creationTimestamp", "date")
_SHARE_COLUMNS = [
    _column("GPUs", ".status.summary"),
    _column("Slots", ".status.slots.total", "integer"),
    _column("Used", ".status.slots.used", "integer"),
    _column("Threads", ".status.threads"),
    _column("Memory", ".status.memory"),
    _column("Ready", _condition("Ready", "status")),
    _column("Reason", _condition("Ready", "reason")),
    _AGE,
    _column("Nodes", ".status.nodes", "integer", wide=True),
    _column("Delivery", ".spec.delivery", wide=True),
]
# One jsonPath gives one value, so the first GPU stands for its node.
_NODE_COLUMNS = [
    _column("Product", ".status.gpus[0].product"),
    _column("Driver", ".status.driverVersion"),
    _column("NVML", _condition("NvmlReachable", "status")),
    _column("Kubelet", _condition("KubeletReachable", "status")),
    _column("Simulated", ".status.simulated", "boolean"),
    _AGE,
    _column("CUDA", ".status.cudaVersion", wide=True),
    _column("Ceiling", ".status.clientCeiling", "integer", wide=True),
    _column("Agent", ".status.agentVersion", wide=True),
]


def definitions() -> list[Schema]:
    """The CustomResourceDefinitions of this version."""
    return [
        definition(GpuShare, "gpushares", short="gs", columns=_SHARE_COLUMNS, rules=[_SHARE_NAME]),
        definition(GpuNode, "gpunodes", short="gn", columns=_NODE_COLUMNS, rules=[]),
    ]


def documents() -> dict[str, str]:
    """File name -> YAML of each definition, as kept under crds/."""
    return {
        f"{names.GROUP}_{crd['spec']['names']['plural']}.yaml": yaml.dump(
            crd, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120
        )
        for crd in definitions()
    }


def definition(
    model: type[ApiModel], plural: str, *, short: str, columns: list[Schema], rules: list[dict[str, str]]
) -> Schema:
    """The CustomResourceDefinition of a cluster-scoped model with spec and status."""
    kind = model.__name__
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": _root_schema(model, rules)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Cluster",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                # Not "gpushare": a category of that name would hide the kind in `kubectl get gpushare NAME`.
                "categories": ["gpushare-all"],
            },
            "versions": [version],
        },
    }


def _root_schema(model: type[ApiModel], rules: list[dict[str, str]]) -> Schema:
    generated = model.model_json_schema(by_alias=True)
    defs = generated["$defs"]
    properties = generated["properties"]
    metadata: Schema = {"type": "object"}
    if rules:  # they look at the name, whose length bounds what they may cost
        metadata["properties"] = {"name": {"type": "string", "maxLength": _LONGEST_NAME}}
    root: Schema = {
        "description": generated["description"],
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": metadata,
            "spec": _structural(properties["spec"], defs, defaults=True),
            "status": _structural(properties["status"], defs, defaults=False),
        },
    }
    if "spec" in generated["required"]:
        root["required"] = ["spec"]
        root["properties"]["spec"].pop("default", None)
    if rules:
        root["x-kubernetes-validations"] = rules
    return root


def _structural(node: Schema, defs: dict[str, Schema], *, defaults: bool) -> Schema:
    """One node of pydantic's JSON schema as a structural schema: inlined, without null, with bounds and list types.

    `defaults` is off for a status: a field that nobody reported must stay absent.
    """
    merged = _without_null(_inlined(node, defs), defs)
    result = {key: value for key, value in merged.items() if key != "default"}
    if "properties" in merged:
        result["properties"] = {
            name: _structural(child, defs, defaults=defaults) for name, child in merged["properties"].items()
        }
    if "items" in merged:
        result["items"] = _structural(merged["items"], defs, defaults=defaults)
        result.setdefault("x-kubernetes-list-type", "atomic")
    if isinstance(merged.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(merged["additionalProperties"], defs, defaults=defaults)
    absent = "anyOf" in node and node.get("default") is None  # None has a meaning of its own
    if defaults and not absent and (default := _default(merged, result)) is not None:
        result["default"] = default
    return {key: result[key] for key in _KEPT if key in result}


def _inlined(node: Schema, defs: dict[str, Schema]) -> Schema:
    """The node with its reference resolved; what stands beside the reference wins."""
    if "$ref" not in node:
        return node
    target = defs[node["$ref"].removeprefix("#/$defs/")]
    return target | {key: value for key, value in node.items() if key != "$ref"}


def _without_null(node: Schema, defs: dict[str, Schema]) -> Schema:
    """`X | None` is an optional X: Kubernetes drops null and we write absent fields instead."""
    if "anyOf" not in node:
        return node
    (only,) = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
    return _inlined(only, defs) | {key: value for key, value in node.items() if key != "anyOf"}


def _default(merged: Schema, result: Schema) -> Any:
    """A scalar's own default; for an optional object the defaults of its fields, since rules read them."""
    if merged.get("default") is not None:
        return merged["default"]
    if "properties" in result and "required" not in result:
        return {name: child["default"] for name, child in result["properties"].items() if "default" in child} or None
    return None


class _Dumper(yaml.SafeDumper):
    """Writes every schema out: YAML anchors do not help the reader of a definition."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
