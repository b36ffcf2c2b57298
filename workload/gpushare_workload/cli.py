"""gpushare-workload: list the scenarios, run one, or measure what sharing a GPU costs and gains.

Exit codes: 0 all checks held, 1 a result or a limit was wrong, 2 bad arguments, 3 the GPU or a worker process refused,
failed or hung, 4 asked to end before the work was done.
"""

import argparse
import sys

from gpushare_workload.backend import CHOICES, GpuError
from gpushare_workload.bench import command as bench
from gpushare_workload.outcomes import WorkerError
from gpushare_workload.report import Report, WrongError
from gpushare_workload.reporting import command as reporting
from gpushare_workload.scenarios import SCENARIOS
from gpushare_workload.stopping import Stop, StoppedError

WRONG, USAGE, GPU, STOPPED = 1, 2, 3, 4
COMMANDS = {module.NAME: module for module in (bench, reporting)}


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.command == "list":
        for name, module in SCENARIOS.items():
            print(f"{name:10} {(module.__doc__ or '').splitlines()[0].split(': ', 1)[-1]}")
        return 0
    module = SCENARIOS[arguments.scenario] if arguments.command == "run" else COMMANDS[arguments.command]
    report, stop = Report(module.NAME), Stop().install()
    try:
        module.run(arguments, report, stop)
    except WrongError as error:
        return _failed(report, "wrong", str(error), WRONG)
    except GpuError as error:
        return _failed(report, "gpu-error", str(error), GPU, code=error.code)
    except WorkerError as error:
        return _failed(report, "worker-failed", str(error), GPU)
    except StoppedError as error:
        return _failed(report, "stopped", str(error), STOPPED)
    except ValueError as error:
        return _failed(report, "usage", str(error), USAGE)
    return 0


def _failed(report: Report, event: str, message: str, status: int, **fields: int) -> int:
    report.emit(event, message=message, **fields)
    print(f"gpushare-workload: {message}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpushare-workload", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name the scenarios")
    running = commands.add_parser("run", help="run one scenario; JSON lines on standard output")
    scenarios = running.add_subparsers(dest="scenario", required=True)
    for name, module in SCENARIOS.items():
        scenario = scenarios.add_parser(
            name, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        scenario.add_argument("--backend", choices=CHOICES, default="auto")
        scenario.add_argument("--seed", type=int, default=1)
        module.add_arguments(scenario)
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=(module.__doc__ or "").splitlines()[0].split(": ", 1)[-1],
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
