"""`gpushare crds`: the CustomResourceDefinitions, generated from the API models."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder to write one file per kind to"
    )


def run(args: argparse.Namespace) -> int:
    from gpushare.api.crd import documents

    for name, text in documents().items():
        (args.output / name).write_text(text)
    return 0
