"""The options that several commands have, named and meant as kubectl's own."""

import argparse
from collections.abc import Sequence

from gpushare.kubectl.output.show import FORMATS

KUBECTL = {
    "context": "name of the kubeconfig's context to use",
    "kubeconfig": "path of the kubeconfig file",
    "cluster": "name of the kubeconfig's cluster to use",
    "user": "name of the kubeconfig's user to use",
    "as": "user to impersonate",
}
"""Options that go to kubectl as they are."""
VALUED = ("-n", *(f"--{name}" for name in (*KUBECTL, "namespace", "system-namespace")))
"""Options before a command that take the next word, where it is not written behind `=`."""


def add_connection(parser: argparse.ArgumentParser) -> None:
    """What stands before or behind the command, and may stand where it says nothing, as with kubectl."""
    group = parser.add_argument_group("as in kubectl")
    for name, text in KUBECTL.items():
        group.add_argument(f"--{name}", default=argparse.SUPPRESS, help=text)
    group.add_argument("-n", "--namespace", default=argparse.SUPPRESS, help="default: that of the context")
    group.add_argument(
        "--system-namespace",
        metavar="NAMESPACE",
        default=argparse.SUPPRESS,
        help="namespace of gpushare itself; default: gpushare-system",
    )


def add_all_namespaces(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="look at all namespaces")


def add_output(parser: argparse.ArgumentParser, *, names: bool, watch: bool, tables: bool = True) -> None:
    """`names`: it can print names alone; `watch`: it can go on; `tables`: it prints tables that can be sorted."""
    formats = FORMATS if names else tuple(name for name in FORMATS if name != "name")
    parser.add_argument("-o", "--output", choices=formats, default="", help="default: as text for people")
    if tables:
        parser.add_argument("--sort-by", metavar="COLUMN", default="", help="a column's name, such as memory")
        parser.add_argument("--no-headers", action="store_true", help="print no line of column names")
    if watch:
        parser.add_argument("-w", "--watch", action="store_true", help="go on, and print rows that are new or changed")


def connection_flags(args: argparse.Namespace) -> Sequence[str]:
    return [f"--{name}={getattr(args, name)}" for name in KUBECTL if getattr(args, name, None)]
