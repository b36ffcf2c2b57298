"""report: one page from the files of benchmarks, with verdicts, and plots of throughput, latency and memory.

Reads the JSON files of `bench` (the files of a Job's pods are combined) and the output of `run mix` and `run overlap`.
The page is one HTML file that needs no network.
"""

import argparse
from pathlib import Path

from gpushare_workload.events import JsonLines
from gpushare_workload.processes.stopping import Stop

NAME = "report"
PNG_DPI = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON, or a log with JSON lines")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the page to this file")
    parser.add_argument("--png", type=Path, metavar="DIR", help="write each plot into this directory")


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    """Raises ValueError naming a file that cannot be used."""
    if not arguments.html and not arguments.png:
        raise ValueError("--html, --png: give at least one of them as the place for the report")
    try:
        from gpushare_workload.reporting.build import build
    except ModuleNotFoundError as error:
        raise ValueError(
            f"the report needs {(error.name or '').partition('.')[0]}: pip install 'gpushare[report]'"
        ) from error
    from gpushare_workload.results.files import read

    page, figures = build(read(arguments.files))
    written = []
    if arguments.html:
        arguments.html.parent.mkdir(parents=True, exist_ok=True)
        arguments.html.write_text(page)
        written.append(str(arguments.html))
    if arguments.png:
        arguments.png.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            path = arguments.png / f"{name}.png"
            figure.savefig(path, dpi=PNG_DPI)
            written.append(str(path))
    events.emit("written", files=written)
