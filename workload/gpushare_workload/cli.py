"""gpushare-workload: list the scenarios, or run one.

Exit codes: 0 all checks held, 1 a result or a limit was wrong, 2 bad arguments, 3 the GPU refused or failed.
"""

import argparse
import sys
from concurrent.futures.process import BrokenProcessPool

from gpushare_workload.backend import CHOICES, GpuError
from gpushare_workload.report import Report, WrongError
from gpushare_workload.scenarios import SCENARIOS
from gpushare_workload.stopping import Stop

WRONG, USAGE, GPU = 1, 2, 3


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.command == "list":
        for name, module in SCENARIOS.items():
            print(f"{name:10} {(module.__doc__ or '').splitlines()[0].split(': ', 1)[-1]}")
        return 0
    report, stop = Report(arguments.scenario), Stop().install()
    try:
        SCENARIOS[arguments.scenario].run(arguments, report, stop)
    except WrongError as error:
        return _failed(report, "wrong", str(error), WRONG)
    except GpuError as error:
        return _failed(report, "gpu-error", str(error), GPU, code=error.code)
    except (BrokenProcessPool, TimeoutError) as error:
        return _failed(report, "worker-died", str(error) or type(error).__name__, GPU)
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
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
