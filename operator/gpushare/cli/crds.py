"""`gpushare crds`: the CustomResourceDefinitions, generated from the API models."""

import argparse
from pathlib import Path

from gpushare.api import crd


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, required=True, action="append", metavar="DIR", help="write them there; may be repeated"
    )


def run(args: argparse.Namespace) -> int:
    for directory in args.output:
        for name, text in crd.documents().items():
            (directory / name).write_text(text)
    return 0
