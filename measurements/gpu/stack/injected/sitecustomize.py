"""Runs in agent and supervisor during the suite `control`: tells of each control command, and holds at one of them.

Python imports it by its name from a directory on PYTHONPATH. The one to hold at is in `hold.json` beside it; whoever
passes there renames that file to `held.json` and waits until it is gone: meanwhile the suite kills somebody.
Standard library only.
"""

import importlib.abc
import importlib.machinery
import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HITS, ASKED, HELD = "hits.jsonl", "hold.json", "held.json"
HOLD_SECONDS = 20.0
"""Nobody waits longer for a suite that has ended."""
CARRIERS = {"gpushare.mps.control": "ControlProgram", "gpushare.mps.control_socket": "ControlSocket"}
"""The class that takes commands to the MPS daemon, by module."""


def role() -> str:
    """The subcommand of `gpushare`; empty: another program."""
    for program, subcommand in pairwise(sys.orig_argv):
        if program.rpartition("/")[2] == "gpushare":
            return subcommand
    return ""


def passed(of: str, commands: tuple[str, ...], when: str) -> None:
    """`commands`: of one call, of which the names count. Waits if this one is asked for."""
    here = {"role": of, "command": " ".join(command.split()[0] for command in commands), "when": when}
    with (HERE / HITS).open("a") as file:
        file.write(json.dumps(here) + "\n")
    try:
        if json.loads((HERE / ASKED).read_text()) != here:
            return
        (HERE / ASKED).rename(HERE / HELD)
    except (OSError, ValueError):  # nothing is asked for, or another thread was quicker
        return
    end = time.monotonic() + HOLD_SECONDS
    while (HERE / HELD).exists() and time.monotonic() < end:
        time.sleep(0.01)


def instrument(carrier: Any, of: str) -> None:
    original = carrier.run

    def run(self: Any, *commands: str, **options: Any) -> str:
        passed(of, commands, "before")
        try:
            return str(original(self, *commands, **options))
        finally:
            passed(of, commands, "after")

    carrier.run = run


class AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, of: str) -> None:
        self._of = of

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        carrier = CARRIERS.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if carrier else None
        if spec is not None and spec.loader is not None and carrier is not None:
            execute = self._executed(spec.loader.exec_module, carrier)
            spec.loader.exec_module = execute  # type: ignore[method-assign,assignment]
        return spec

    def _executed(self, original: Callable[[Any], None], carrier: str) -> Callable[[Any], None]:
        def exec_module(module: Any) -> None:
            original(module)
            instrument(getattr(module, carrier), self._of)

        return exec_module


if role() in ("agent", "mps-supervisor"):
    sys.meta_path.insert(0, AfterImport(role()))
