"""The scenarios by name. Each module has `NAME`, `add_arguments(parser)` and `run(arguments, events, stop)`."""

from importlib import import_module
from typing import Any

_COOPERATION, _ISOLATION, _SHARING = (f"{__name__}.{room}" for room in ("cooperation", "isolation", "sharing"))
SCENARIOS = {
    "limits": f"{_ISOLATION}.limits",
    "pool": f"{_SHARING}.pool",
    "streams": f"{_SHARING}.streams",
    "graph": f"{_SHARING}.graph",
    "pipeline": f"{_COOPERATION}.pipeline",
    "refine": f"{_COOPERATION}.refine",
    "pin": f"{_SHARING}.pin",
    "ddp": f"{_COOPERATION}.ddp",
    "mix": f"{_SHARING}.mix",
    "overlap": f"{_SHARING}.overlap",
    "trio": f"{_SHARING}.trio",
    "serve": f"{_SHARING}.serve",
    "fault": f"{_ISOLATION}.fault",
    "hog": f"{_ISOLATION}.hog",
    "oversize": f"{_ISOLATION}.oversize",
    "swell": f"{_ISOLATION}.swell",
    "depart": f"{_ISOLATION}.depart",
}
"""Modules by their paths: a process imports the scenario that it runs, and no other."""
BY_TORCH = frozenset({"ddp"})
"""Scenarios in which PyTorch computes, whatever the backend."""


def scenario(name: str) -> Any:
    """The module of a scenario."""
    return import_module(SCENARIOS[name])
