"""gpushare-workload: list the scenarios, run one, or measure what sharing a GPU costs and gains.

Exit codes: 0: all checks held. 1: a result or a limit was wrong. 2: bad arguments. 3: CUDA refused a call or failed, or
a worker process died, failed or hung. 4: asked to end before the work was done.
"""

import argparse
import sys
from typing import Any

from gpushare.mps.control import ControlError
from gpushare_workload.backend import CHOICES, GpuError
from gpushare_workload.bench import command as bench
from gpushare_workload.compare import command as compare
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.gpus.monitor import GpuMonitorError
from gpushare_workload.processes.outcomes import WorkerError
from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.reporting import command as reporting
from gpushare_workload.scenarios import SCENARIOS

WRONG, USAGE, GPU, STOPPED = 1, 2, 3, 4
COMMANDS = {module.NAME: module for module in (bench, compare, reporting)}


def main(argv: list[str] | None = None) -> int:
    """Runs the command line `argv`. Returns the exit code."""
    arguments = parser().parse_args(argv)
    if arguments.command == "list":
        for name, module in SCENARIOS.items():
            print(f"{name:10} {_question(module)}")
        return 0
    module = SCENARIOS[arguments.scenario] if arguments.command == "run" else COMMANDS[arguments.command]
    events, stop = JsonLines(module.NAME), Stop().install()
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


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="gpushare-workload", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the scenarios and their questions")
    running = commands.add_parser("run", help="run one scenario; prints JSON lines on standard output")
    scenarios = running.add_subparsers(dest="scenario", required=True)
    for name, module in SCENARIOS.items():
        scenario = scenarios.add_parser(
            name,
            help=_question(module),
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        scenario.add_argument(
            "--backend", choices=CHOICES, default="auto", help="auto is CuPy if it is installed, else NumPy"
        )
        scenario.add_argument(
            "--seed", type=int, default=1, help="determines the data and the arrivals (default: %(default)s)"
        )
        module.add_arguments(scenario)
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=_question(module),
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    return parser


def _question(module: Any) -> str:
    """The first line of the module's docstring, without the name of the module."""
    return str(module.__doc__ or "").splitlines()[0].split(": ", 1)[-1]


if __name__ == "__main__":
    raise SystemExit(main())
