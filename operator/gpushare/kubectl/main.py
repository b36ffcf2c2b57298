"""The program `kubectl-gpushare`: kubectl finds it on the PATH and runs it as `kubectl gpushare`.

It reaches the cluster through kubectl, so with its kubeconfig and the user's own rights. docs/kubectl.md says which
rights a command needs. Only the module of the command is imported, so that each call starts quickly.
"""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType

from gpushare.kube.resources import KubeError
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster
from gpushare.kubectl.failures import FAILED, INTERRUPTED, UnreachableError, WrongInputError
from gpushare.kubectl.output.report import Report
from gpushare.kubectl.output.show import Printer, UnknownColumnError, new_rows, terminal_width
from gpushare.kubectl.output.table import plain_lines

COMMANDS = {
    "status": ("gpushare.kubectl.commands.status", "show shares, GPUs and their problems"),
    "top": ("gpushare.kubectl.commands.top", "show what each container is granted of its GPU and uses of it"),
    "why": ("gpushare.kubectl.commands.why", "say in one answer why a pod does not run, or what it runs on"),
    "describe": ("gpushare.kubectl.commands.describe", "show everything about one share, node or pod"),
    "events": ("gpushare.kubectl.commands.events", "show events of gpushare, and refusals of its webhook"),
    "plan": ("gpushare.kubectl.commands.plan", "show which GPUs a GpuShare in a file would take, or why not"),
    "defragment": (
        "gpushare.kubectl.commands.defragment",
        "show which pods to start again so that GPUs become free",
    ),
    "check": ("gpushare.kubectl.commands.check", "check whether the cluster, or a node, is ready for shares"),
    "recommend": (
        "gpushare.kubectl.recommend.command",
        "say which changes of shares the past supports, and how surely",
    ),
    "ui": ("gpushare.kubectl.page.command", "open a page that shows GPUs, clients and problems live"),
    "trial": (
        "gpushare.kubectl.trial.command",
        "run copies of a Job, or several Jobs, in slots of a share, and say whether sharing pays",
    ),
}
"""Command: (module with `add_arguments(parser)` and `run(cluster, args) -> Report`, one line of help)."""

COMPLETE = "__complete"
"""A command for a `kubectl_complete-gpushare` that is a script: it gets what kubectl asks."""
WATCH_SECONDS = 2.0
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0; 1 where the command found a problem; 2 where the command failed or its arguments are wrong."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == [COMPLETE]:
        return completion(arguments[1:])
    parser, module = parser_for(arguments)
    args = parser.parse_args(arguments)
    if args.version:
        from importlib.metadata import version  # by this option alone: it takes long to import

        print(f"kubectl-gpushare {version('gpushare')}")
        return 0
    if module is None:
        parser.print_help()
        return 2
    args.system_namespace = getattr(args, "system_namespace", "gpushare-system")
    args.namespace = getattr(args, "namespace", None)
    cluster = Cluster(options.connection_flags(args))
    try:
        return _answer(module, cluster, args)
    except (KubeError, UnreachableError, WrongInputError, UnknownColumnError) as error:
        print(plain_lines(f"error: {error}"), file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end
        return BROKEN_PIPE
    finally:
        cluster.close()


def completion(words: Sequence[str] | None = None) -> int:
    """The program `kubectl_complete-gpushare`, which kubectl's completion runs with the words so far."""
    from gpushare.kubectl.completion import complete

    return complete(parser_for, sys.argv[1:] if words is None else words)


def _answer(module: ModuleType, cluster: Cluster, args: argparse.Namespace) -> int:
    printer = Printer(
        args.output, not getattr(args, "no_headers", False), getattr(args, "sort_by", ""), terminal_width(sys.stdout)
    )
    report: Report = module.run(cluster, args)
    printer.show(report)
    while getattr(args, "watch", False):
        time.sleep(WATCH_SECONDS)
        before, report = report, module.run(cluster, args)
        printer.headers = False
        if report.data != before.data:
            printer.show(new_rows(before, report))
    return report.code


def parser_for(arguments: Sequence[str]) -> tuple[argparse.ArgumentParser, ModuleType | None]:
    """The parser, with the options of the command among `arguments` alone, and that command's module."""
    chosen = command_of(arguments)
    parser = argparse.ArgumentParser(
        prog="kubectl gpushare", description="Shows GPUs that are shared through MPS.", allow_abbrev=False
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    options.add_connection(parser)
    commands = parser.add_subparsers(metavar="COMMAND", dest="command")
    module = None
    for name, (path, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary.capitalize()}.", allow_abbrev=False)
        if name == chosen:
            module = importlib.import_module(path)
            module.add_arguments(command)
            options.add_connection(command)
    return parser, module


def command_of(arguments: Sequence[str]) -> str | None:
    """The first word that is neither an option nor the value of one before it."""
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            return word
        if word in options.VALUED:
            next(words, None)
    return None


if __name__ == "__main__":
    raise SystemExit(main())
