"""The contract suite against this machine's GPU, test by test.

    python3 -m measurements.gpu.mps.contract OUT.json  (simulated: --simulation)

Tests that set the GPU's compute mode are left out, because on a lent machine it is not ours to set; `--compute-mode`
includes them. For the requirements see tests/contract/conftest.py; it also needs pytest, pydantic and nvidia-ml-py.
Exit code 0: none failed.
"""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from measurements.gpu import ROOT
from measurements.gpu.environment import environment_block

LEFT_OUT = "sets_compute_mode"


class Outcomes:
    """A plugin of pytest that collects the outcome of each test."""

    def __init__(self) -> None:
        self.by_test: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A failure before or after the test itself is its failure."""
        if report.when == "call" or report.outcome != "passed":
            self.by_test[report.nodeid] = report.outcome


def main() -> int:
    if "--simulation" not in sys.argv:
        os.environ["GPUSHARE_CONTRACT"] = "real"
    [out] = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("--")]
    chosen = [] if "--compute-mode" in sys.argv else ["-m", f"not {LEFT_OUT}"]
    outcomes, began = Outcomes(), time.monotonic()
    options = ["-v", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *chosen]
    code = pytest.main([*options, str(ROOT / "tests" / "contract")], plugins=[outcomes])
    result = {
        "suite": "contract",
        "simulated": "--simulation" in sys.argv,
        "as_expected": code == pytest.ExitCode.OK,
        "outcomes": Counter(outcomes.by_test.values()),
        **({"left_out": LEFT_OUT} if chosen else {}),
        "tests": outcomes.by_test,
        "took_seconds": round(time.monotonic() - began, 1),
        "environment": environment_block(),
    }
    out.write_text(json.dumps(result, indent=2) + "\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
