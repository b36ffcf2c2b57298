"""`gpushare crds`: the CustomResourceDefinitions, generated from the API models."""

import argparse
from pathlib import Path

from gpushare.api import crd, reference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        action="append",
        metavar="DIR",
        help="directory for the YAML files; may be repeated",
    )
    parser.add_argument("--reference", type=Path, metavar="FILE", help="file for the API reference, in Markdown")


def run(args: argparse.Namespace) -> int:
    for directory in args.output:
        for name, text in crd.documents().items():
            (directory / name).write_text(text)
    if args.reference:
        args.reference.write_text(reference.markdown(crd.definitions()))
    return 0
