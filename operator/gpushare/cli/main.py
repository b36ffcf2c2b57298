"""The program of all parts, on the control plane and on the nodes: `gpushare COMMAND`.

Guarantees: only the module of the command is imported, so a part starts quickly and without the dependencies of the
others.
"""

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from types import ModuleType

COMMANDS = {
    "operator": ("gpushare.cli.operator", "assign GPUs to shares; one replica is active at a time"),
    "webhook": ("gpushare.cli.webhook", "check and change pods, claims and GpuShares on admission"),
    "agent": ("gpushare.cli.agent", "run on a node: inventory, device plugin, DRA driver, ending clients in order"),
    "mps-broker": ("gpushare.cli.mps_broker", "attach client containers of a share to its MPS daemons on a node"),
    "mps-supervisor": ("gpushare.cli.mps_supervisor", "run an MPS daemon for each GPU of a share on a node"),
    "simulated-driver": ("gpushare.cli.simulated_driver", "simulate GPUs and their driver"),
    "uninstall": (
        "gpushare.cli.uninstall",
        "delete all GpuShares and wait for their clients, before gpushare is uninstalled",
    ),
    "smoke-test": ("gpushare.cli.smoke_test", "check that webhook, operator and agents work together"),
    "ui": ("gpushare.kubectl.page.in_cluster", "serve the page of kubectl gpushare ui in the cluster"),
    "crds": ("gpushare.cli.crds", "write the CustomResourceDefinitions as YAML"),
}
"""Command: (module with `add_arguments(parser)` and `run(args) -> int`, one line of help)."""

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if not word.startswith("-")), None)
    parser, module = _parser(command)
    args = parser.parse_args(arguments)
    if args.version:
        from importlib.metadata import version  # here alone: it takes 3 MiB, which every process would keep

        print(f"gpushare {version('gpushare')}")
        return 0
    if module is None:
        parser.error("a command is missing")
    logging.basicConfig(
        level=args.log_level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    # They log each header of each call, and each call that its peer ended, which says nothing about gpushare.
    logging.getLogger("hpack").setLevel(max(logging.INFO, logging.getLogger().level))
    logging.getLogger("grpclib").setLevel(max(logging.WARNING, logging.getLogger().level))
    code: int = module.run(args)
    return code


def _parser(command: str | None) -> tuple[argparse.ArgumentParser, ModuleType | None]:
    """The parser, with the options of `command` alone, and that command's module."""
    parser = argparse.ArgumentParser(prog="gpushare", description="Shares NVIDIA GPUs between pods through CUDA MPS.")
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command")
    chosen = None
    for name, (module, summary) in COMMANDS.items():
        sub = subparsers.add_parser(name, help=summary, description=summary)
        sub.add_argument("--log-level", choices=LOG_LEVELS, default="INFO", help="default: INFO")
        if name == command:
            chosen = importlib.import_module(module)
            chosen.add_arguments(sub)
    return parser, chosen


if __name__ == "__main__":
    raise SystemExit(main())
