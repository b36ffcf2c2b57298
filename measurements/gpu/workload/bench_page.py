"""Writes the tables of kernels.md and results.md in measurements/pages from the results under measurements/results.

    python3 -m measurements.gpu.workload.bench_page [FOLDER OF THE PAGES]

The report and the pictures of one product come from the same files:

    python3 -m gpushare_workload.cli report measurements/results/h200/bench/{depth-*,caps,memory,scale}.json \\
        measurements/results/h200/bench/*.jsonl --html measurements/results/h200/report.html \\
        --png measurements/results/h200/pictures
"""

import sys
from pathlib import Path

from measurements.gpu import ROOT
from measurements.gpu.workload.bench_tables import tables
from tests.page_tables import filled

PAGES, RESULTS = ROOT / "measurements/pages", ROOT / "measurements/results"
OF_RESULTS = ("gains",)
"""The tables of results.md; all others stand in kernels.md."""


def main(pages: Path = PAGES) -> None:
    all_tables = tables(RESULTS)
    read = {name: all_tables.pop(name) for name in OF_RESULTS}
    for page, of_it in (("results.md", read), ("kernels.md", all_tables)):
        path = pages / page
        path.write_text(filled(path.read_text(), of_it))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
