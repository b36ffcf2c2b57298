"""Runs a scenario as its command does, on the NumPy backend."""

import argparse
import json
from collections.abc import Callable, Mapping
from io import StringIO
from types import ModuleType
from typing import Any

from gpushare_workload.events import JsonLines
from gpushare_workload.processes.stopping import Stop

Lines = list[dict[str, Any]]


def runner(scenario: ModuleType, tiny: Mapping[str, Any]) -> Callable[..., Lines]:
    """`run(stop, *parts, **options)`: the lines of `scenario` with its own defaults, but for `tiny` and the options."""

    def run(stop: Stop | None = None, *parts: Any, **options: Any) -> Lines:
        parser, out = argparse.ArgumentParser(), StringIO()
        scenario.add_arguments(parser)
        given = vars(parser.parse_args([])) | tiny | options
        name = scenario.__name__.rpartition(".")[2]
        scenario.run(argparse.Namespace(backend="numpy", seed=1, **given), JsonLines(name, out), stop or Stop(), *parts)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    return run
