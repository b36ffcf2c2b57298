"""Writes the tables of measurements/pages/kernels.md from the results under measurements/results.

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


def main(pages: Path = PAGES) -> None:
    path = pages / "kernels.md"
    path.write_text(filled(path.read_text(), tables(RESULTS)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
