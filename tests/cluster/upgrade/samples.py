"""What a release wrote, as samples for the unit tests of later ones (tests/unit/skew)."""

import json
from pathlib import Path
from typing import Any

from tests.cluster.harness import Harness
from tests.cluster.upgrade.life import CLAIMED, SLOTTED

FILES = ("daemon.json", "state.json", "grants.json", "broker.json", "endings.json", "seen.json")


def write_samples(harness: Harness, directory: str) -> None:
    """Objects of the API, the definitions, files of the slotted share's GPU, and a claim's CDI spec."""
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    for name, reference in {
        "gpushare-slots": f"gpushare/{SLOTTED}",
        "gpushare-claims": f"gpushare/{CLAIMED}",
        "gpunode": "gpunode/node1",
        "crd-gpushares": "crd/gpushares.gpushare.dev",
        "crd-gpunodes": "crd/gpunodes.gpushare.dev",
    }.items():
        found = without_words(harness.kubectl.get(*reference.split("/")))
        found["metadata"].pop("managedFields", None)
        _write(target / f"{name}.json", json.dumps(found))
    for gpu in harness.gpu_dirs().values():
        if json.loads((gpu / "daemon.json").read_text())["share"] != SLOTTED:
            continue
        for path in gpu.rglob("*.json"):
            if path.name in FILES:
                _write(target / path.name, path.read_text())
    specs = sorted(harness.in_node("/var/run/cdi").glob("gpushare.dev-claim-*.json"))
    _write(target / "claim-cdi.json", specs[0].read_text())
    _write(target / "claim-cdi.name.json", json.dumps(specs[0].name))


def without_words(schema: Any) -> Any:
    """A definition without its descriptions, which are most of it."""
    if isinstance(schema, dict):
        return {key: without_words(value) for key, value in schema.items() if key != "description"}
    return [without_words(value) for value in schema] if isinstance(schema, list) else schema


def _write(path: Path, text: str) -> None:
    path.write_text(json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n")
