"""gpushare-workload: list the scenarios, run one, or measure what sharing a GPU costs and gains.

Exit codes: 0: all checks held. 1: a result or a limit was wrong. 2: bad arguments. 3: CUDA refused a call or failed, or
a worker process died, failed or hung. 4: asked to end before the work was done.
"""

import argparse
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any

from gpushare.mps.control import ControlError
from gpushare_workload.backend import CHOICES, GpuError, on_a_cpu
from gpushare_workload.events import JsonLines, WrongError, say
from gpushare_workload.gpus.monitor import GpuMonitorError
from gpushare_workload.processes.outcomes import WorkerError
from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.scenarios import BY_TORCH, SCENARIOS, scenario

WRONG, USAGE, GPU, STOPPED = 1, 2, 3, 4
COMMANDS = {
    "bench": "gpushare_workload.bench.command",
    "compare": "gpushare_workload.compare.command",
    "report": "gpushare_workload.reporting.command",
}
"""Modules of what is no scenario, with the same functions. Only the module that is asked for is imported: a pod starts
quickly, and so do its worker processes, each of which imports this file.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv`. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser(words).parse_args(words)
    if arguments.command == "list":
        for name in SCENARIOS:
            print(f"{name:10} {_question(scenario(name))}")
        return 0
    module = scenario(arguments.scenario) if arguments.command == "run" else command(arguments.command)
    events, stop = JsonLines(module.NAME), Stop().install()
    if arguments.command == "run" and module.NAME not in BY_TORCH and (sentence := on_a_cpu(arguments.backend)):
        say(sentence)
    try:
        module.run(arguments, events, stop)
    except WrongError as error:
        return _failed(events, "wrong", str(error), WRONG)
    except GpuError as error:
        return _failed(events, "gpu-error", str(error), GPU, code=error.code)
    except (WorkerError, ControlError, GpuMonitorError) as error:
        return _failed(events, "worker-failed", str(error), GPU)
    except StoppedError as error:
        return _failed(events, "stopped", str(error), STOPPED)
    except ValueError as error:
        return _failed(events, "usage", str(error), USAGE)
    return 0


def _failed(events: JsonLines, event: str, message: str, status: int, **fields: int) -> int:
    events.emit(event, message=message, **fields)
    print(f"gpushare-workload: {message}", file=sys.stderr)
    return status


def command(name: str) -> Any:
    """The module of a command that is no scenario."""
    return import_module(COMMANDS[name])


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command line. Where `words` begin with a command or a scenario, it knows that alone."""
    parser = argparse.ArgumentParser(
        prog="gpushare-workload", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the scenarios and their questions")
    running = commands.add_parser("run", help="run one scenario; prints JSON lines on standard output")
    scenarios = running.add_subparsers(dest="scenario", required=True)
    asked_scenarios, asked_commands = _asked(words)
    for name in asked_scenarios:
        added = _add(scenarios, name, scenario(name))
        added.add_argument(
            "--backend", choices=CHOICES, default="auto", help="auto is CuPy if it is installed, else NumPy"
        )
        added.add_argument(
            "--seed", type=int, default=1, help="determines the data and the arrivals (default: %(default)s)"
        )
        scenario(name).add_arguments(added)
    for name in asked_commands:
        command(name).add_arguments(_add(commands, name, command(name)))
    return parser


def _asked(words: Sequence[str]) -> tuple[Collection[str], Collection[str]]:
    """(scenarios, commands): the one that `words` begin with, else all."""
    first, second = (*words, "", "")[:2]
    if first in COMMANDS:
        return (), (first,)
    if first == "run":
        return ((second,) if second in SCENARIOS else SCENARIOS), ()
    return SCENARIOS, COMMANDS


def _add(parsers: Any, name: str, module: Any) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = parsers.add_parser(
        name,
        help=_question(module),
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return added


def _question(module: Any) -> str:
    """The first line of the module's docstring, without the name of the module."""
    return str(module.__doc__ or "").splitlines()[0].split(": ", 1)[-1]


if __name__ == "__main__":
    raise SystemExit(main())
