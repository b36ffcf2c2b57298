"""What the release before wrote, read by this one, and nothing missing in what this one writes in its place.

The samples in `before` are what that release's own code wrote: `make skew-samples` in its tree.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from gpushare.agent.dra.prepared import PREFIX, SUFFIX, PreparedClaims, spec
from gpushare.agent.faults.downtime import LastSeen
from gpushare.api.crd import definitions
from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.controller.cache.fleet_cache import known_gpu_node, known_share
from gpushare.mps.files import read_model
from gpushare.mps.terminations import TerminationFile
from gpushare.mps.wire import BrokerState, DaemonState, DesiredDaemon, GpuGrants, WireModel, encode

BEFORE = Path(__file__).with_name("before")
FILES: dict[str, type[WireModel]] = {
    "daemon.json": DesiredDaemon,
    "state.json": DaemonState,
    "grants.json": GpuGrants,
    "broker.json": BrokerState,
    "endings.json": TerminationFile,
    "seen.json": LastSeen,
}
OBJECTS: dict[str, type[BaseModel]] = {
    "gpushare-slots.json": GpuShare,
    "gpushare-claims.json": GpuShare,
    "gpunode.json": GpuNode,
}


def sample(name: str) -> Any:
    return json.loads((BEFORE / name).read_text())


def missing(before: Any, now: Any, at: str = "") -> Iterator[str]:
    """Paths that are in `before` alone, or hold something else `now`."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key, value in before.items():
            yield from missing(value, now[key], f"{at}.{key}") if key in now else (f"{at}.{key}",)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (old, other) in enumerate(zip(before, now, strict=True)):
            yield from missing(old, other, f"{at}[{number}]")
    elif before != now:
        yield at


PRIORITY = ".priority"
"""Of the limits of MPS clients: nobody reads it any more, in a file or an object."""


def lost(before: Any, now: Any) -> list[str]:
    """What of `before` is missing, but for what nobody reads any more."""
    return [path for path in missing(before, now) if not path.endswith(PRIORITY)]


@pytest.mark.parametrize("name", FILES)
def test_a_file_on_the_node_is_read_and_written_again_with_all_that_it_had(tmp_path: Path, name: str) -> None:
    shutil.copy(BEFORE / name, tmp_path)
    read = read_model(tmp_path / name, FILES[name])
    assert read.value is not None, read.reason
    assert lost(sample(name), json.loads(encode(read.value))) == []


@pytest.mark.parametrize("name", OBJECTS)
def test_a_stored_object_is_read_with_all_that_it_had(name: str) -> None:
    stored = sample(name)
    read = OBJECTS[name].model_validate(stored).model_dump(by_alias=True, mode="json")
    assert lost(stored["spec"], read["spec"]) == []
    assert lost(stored["status"], read["status"]) == []


def test_the_operator_knows_them_with_their_specs_and_gpus() -> None:
    for name in ("gpushare-slots.json", "gpushare-claims.json"):
        assert known_share(sample(name)).share is not None
    node = known_gpu_node(sample("gpunode.json"))
    assert node is not None
    assert len(node.spec.assignments or ()) == len(node.status.daemons) == 2


def test_a_prepared_claim_is_known_to_the_next_agent(tmp_path: Path) -> None:
    written = sample("claim-cdi.json")
    name = sample("claim-cdi.name.json")
    (tmp_path / name).write_text(json.dumps(written))
    claim = PreparedClaims(tmp_path).get(name.removeprefix(PREFIX).removesuffix(SUFFIX))
    assert claim is not None
    assert list(missing(written, spec(claim))) == []


# -- definitions

Schema = Mapping[str, Any]


def harms(before: Schema, now: Schema, at: str) -> Iterator[str]:
    """What of the definition before is gone or has become narrower for what is stored."""
    if before.get("type") != now.get("type"):
        yield f"{at} was {before.get('type')} and is {now.get('type')}"
        return
    for value in before.get("enum", ()):
        if value not in now.get("enum", (value,)):
            yield f"{at} no longer takes {value!r}"
    if "enum" in now and "enum" not in before:
        yield f"{at} takes some values alone"
    for field in set(now.get("required", ())) - set(before.get("required", ())):
        yield f"{at}.{field} is required"
    for bound in ("maxLength", "maxItems", "maximum"):
        if now.get(bound, float("inf")) < before.get(bound, float("inf")):
            yield f"{at}: {bound} is lower"
    for bound in ("minLength", "minItems", "minimum"):
        if now.get(bound, float("-inf")) > before.get(bound, float("-inf")):
            yield f"{at}: {bound} is higher"
    known = now.get("properties", {})
    for name, schema in before.get("properties", {}).items():
        yield from harms(schema, known[name], f"{at}.{name}") if name in known else (f"{at}.{name} is gone",)
    if "items" in before:
        yield from harms(before["items"], now.get("items", {}), f"{at}[]")


CHANGED = frozenset(
    {
        "gpushares.spec.clients.priority is gone",
        "gpunodes.status.daemons[].desiredLimits.priority is gone",
        "gpunodes.status.daemons[].currentLimits.priority is gone",
    }
)
"""What has a line under API changes in CHANGELOG.md, in the words of `harms`."""


@pytest.mark.parametrize("kind", ["gpushares", "gpunodes"])
def test_no_stored_object_becomes_invalid_unless_the_changelog_says_so(kind: str) -> None:
    before = sample(f"crd-{kind}.json")["spec"]["versions"]
    (now,) = [
        definition["spec"]["versions"] for definition in definitions() if definition["spec"]["names"]["plural"] == kind
    ]
    assert {version["name"] for version in before} <= {version["name"] for version in now if version["served"]}
    for version in before:
        schema = next(item for item in now if item["name"] == version["name"])["schema"]["openAPIV3Schema"]
        assert set(harms(version["schema"]["openAPIV3Schema"], schema, kind)) - CHANGED == set()


@pytest.mark.parametrize(
    ("now", "harm"),
    [
        ({"type": "object", "properties": {}}, "it.a is gone"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, "it.a was string and is integer"),
        ({"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}}}, "it.a no longer takes 'y'"),
        ({"type": "object", "required": ["b"], "properties": {"a": {"type": "string"}}}, "it.b is required"),
        ({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}, "it.a: maxLength is lower"),
        ({"type": "object", "properties": {"a": {"type": "string", "minLength": 3}}}, "it.a: minLength is higher"),
    ],
)
def test_a_definition_that_became_narrower_is_found(now: Schema, harm: str) -> None:
    before = {"type": "object", "properties": {"a": {"type": "string", "enum": ["x", "y"], "maxLength": 5}}}
    assert harm in set(harms(before, now, "it"))
    assert set(harms(before, before, "it")) == set()
