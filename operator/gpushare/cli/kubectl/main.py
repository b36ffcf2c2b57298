"""The program `kubectl-gpushare`: kubectl finds it on the PATH and runs it as `kubectl gpushare`.

It uses the kubeconfig as kubectl does, and the user's own rights. docs/kubectl.md says which rights a command needs.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version

from kubernetes.aio.config import ConfigException
from pydantic import ValidationError
from rich.console import Console

from gpushare.cli.kubectl import check, plan, status, top
from gpushare.cli.kubectl.report import Report, show
from gpushare.controller.fleet_cache import UnreadableError
from gpushare.kube.client import API_ERRORS, Kube, connect

COMMANDS = {
    "status": (status, "show shares, GPUs and their problems"),
    "top": (top, "show what each container is granted of its GPU and uses of it"),
    "plan": (plan, "show which GPUs a GpuShare in a file would take, and why others are refused"),
    "check": (check, "check whether the cluster, or a node, is ready for shares"),
}
API_FAILURES = (ConfigException, *API_ERRORS)
UNREADABLE = (plan.PlanError, UnreadableError, ValidationError)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0; 1 where the command found a problem (plan: no GPU would be taken); 2 where the command failed."""
    args = _parser().parse_args(argv)
    try:
        report = asyncio.run(_ask(args.run, args))
    except (*API_FAILURES, *UNREADABLE) as error:
        print(f"error: {error or type(error).__name__}", file=sys.stderr)
        return 2
    return show(report, args.output, Console(soft_wrap=args.output == "json"))


async def _ask(command: Callable[[Kube, argparse.Namespace], Awaitable[Report]], args: argparse.Namespace) -> Report:
    kube = await connect(f"kubectl-gpushare/{version('gpushare')}")
    try:
        return await command(kube, args)
    finally:
        await kube.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kubectl gpushare", description="Shows GPUs that are shared through MPS.")
    parser.add_argument("--version", action="version", version=f"kubectl-gpushare {version('gpushare')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
        command.add_argument(
            "--system-namespace", default="gpushare-system", help="namespace of gpushare; default: gpushare-system"
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
