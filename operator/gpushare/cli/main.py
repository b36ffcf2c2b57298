"""The one program of control plane and nodes: `gpushare <part>`.

Only the module of the part that was asked for is imported: a part starts without another part's dependencies, and the
start stays quick. The version is printed by `gpushare --version`.
"""

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from types import ModuleType

COMMANDS = {
    "operator": ("gpushare.cli.operator", "decide which GPU belongs to which share; one active at a time"),
    "webhook": ("gpushare.cli.webhook", "serve admission of pods and shares"),
    "agent": ("gpushare.cli.agent", "look after one node: inventory, device plugin, departures"),
    "mps-supervisor": ("gpushare.cli.mps_supervisor", "keep one MPS control daemon per GPU of a share"),
    "simulated-driver": ("gpushare.cli.simulated_driver", "stand in for GPUs where there are none"),
    "uninstall": ("gpushare.cli.uninstall", "say whether gpushare may be uninstalled, or prepare for it"),
    "crds": ("gpushare.cli.crds", "write the CustomResourceDefinitions as YAML"),
}
"""Command: (module with `add_arguments(parser)` and `run(args) -> int`, one line of help)."""

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if not word.startswith("-")), None)
    parser, module = _parser(command)
    args = parser.parse_args(arguments)
    if module is None:
        parser.error("name a command")
    logging.basicConfig(
        level=args.log_level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    # Several lines for each call, which say nothing of us.
    logging.getLogger("grpc").setLevel(max(logging.INFO, logging.getLogger().level))
    code: int = module.run(args)
    return code


def _parser(command: str | None) -> tuple[argparse.ArgumentParser, ModuleType | None]:
    """The parser, with the options of `command` alone, and that command's module."""
    parser = argparse.ArgumentParser(prog="gpushare", description="NVIDIA GPUs shared through MPS.")
    parser.add_argument("--version", action="version", version=f"gpushare {version('gpushare')}")
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
