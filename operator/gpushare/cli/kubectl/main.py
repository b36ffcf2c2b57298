"""The program `kubectl-gpushare`: found on the PATH, kubectl runs it as `kubectl gpushare`.

Uses the kubeconfig as kubectl does, and only rights that the user has; what each command needs is in docs/kubectl.md.
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
from gpushare.cli.kubectl.answer import Report, show
from gpushare.controller.fleet_cache import UnreadableError
from gpushare.kube.client import API_ERRORS, Kube, connect

COMMANDS = {
    "status": (status, "shares, GPUs and what is not as it should be"),
    "top": (top, "what each container was granted of its GPU, and what it uses"),
    "plan": (plan, "which GPUs a GpuShare in a file would take, and which are refused and why"),
    "check": (check, "whether the cluster, or a node, is fit for shares"),
}
API_FAILURES = (ConfigException, *API_ERRORS)
UNREADABLE = (plan.PlanError, UnreadableError, ValidationError)


def main(argv: Sequence[str] | None = None) -> int:
    """0: done. 1: done, and something is not as it should be (plan: no GPU would be taken). 2: could not be done."""
    args = _parser().parse_args(argv)
    try:
        answer = asyncio.run(_ask(args.run, args))
    except (*API_FAILURES, *UNREADABLE) as error:
        print(f"error: {error or type(error).__name__}", file=sys.stderr)
        return 2
    return show(answer, args.output, Console(soft_wrap=args.output == "json"))


async def _ask(command: Callable[[Kube, argparse.Namespace], Awaitable[Report]], args: argparse.Namespace) -> Report:
    kube = await connect(f"kubectl-gpushare/{version('gpushare')}")
    try:
        return await command(kube, args)
    finally:
        await kube.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kubectl gpushare", description="GPUs shared through MPS, seen from outside.")
    parser.add_argument("--version", action="version", version=f"kubectl-gpushare {version('gpushare')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
        command.add_argument(
            "--system-namespace", default="gpushare-system", help="where gpushare runs; default: gpushare-system"
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
