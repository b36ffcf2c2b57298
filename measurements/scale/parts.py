"""What each part of gpushare costs before it does anything: memory and CPU time of its imports.

    python -m measurements.scale.parts --out measurements/results/scale/parts.json

Each part is started as its container starts it, in a fresh process of `--python`, up to the point where the part would
begin its work; then the process reads /proc/self/smaps_rollup. With an interpreter whose packages are those of
requirements/operator.lock the figures are the image's; the default is this one, whose packages are more. `--before
COMMIT` measures that commit, too, with `--before-python`. `anonymousMib` is what each process has for itself;
`residentMib` counts libraries, too, which the parts of one node share; `cpuSeconds` is the least of the repeats.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from measurements.scale import results
from measurements.scale.trees import trees

PARTS = {
    "operator": ["gpushare.cli.operator", "gpushare.controller.handlers", "gpushare.controller.settings"],
    "webhook": ["gpushare.cli.webhook"],
    "agent": ["gpushare.cli.agent", "gpushare.agent.run", "gpushare.nvml.real"],
    "mps-supervisor": ["gpushare.cli.mps_supervisor", "gpushare.nvml.real"],
    "mps-broker": ["gpushare.cli.mps_broker"],
}
"""The modules that each imports, after `gpushare.cli.main`."""
REPEATS = 3
_MEASURED = """
import importlib, json, os, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
usage = dict(line.split()[:2] for line in open("/proc/self/smaps_rollup") if line.split()[0].endswith(":"))
times = os.times()
print(json.dumps({
    "anonymousMib": round(int(usage["Anonymous:"]) / 1024, 1),
    "residentMib": round(int(usage["Rss:"]) / 1024, 1),
    "cpuSeconds": times.user + times.system,
    "modules": len(sys.modules),
}))
"""


def measured(python: Path, tree: Path, modules: list[str]) -> dict[str, Any]:
    command = [str(python), "-s", "-c", _MEASURED, "gpushare.cli.main", *modules]
    environ = {"PYTHONPATH": str(tree / "operator"), "LANG": "C.UTF-8"}
    runs = []
    for _ in range(REPEATS + 1):  # the first one writes byte code
        output = subprocess.run(command, env=environ, check=True, capture_output=True, timeout=120).stdout
        runs.append(json.loads(output))
    return {**runs[-1], "cpuSeconds": round(min(run["cpuSeconds"] for run in runs[1:]), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    results.add_pythons(parser)
    parser.add_argument("--before", default="", help="a commit to compare with")
    results.add_out(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, trees(args.before, Path(scratch)) as compared:
        subjects = {"now": (args.python, compared["after"])}
        if args.before:
            subjects["before"] = (args.before_python or args.python, compared["before"])
        figures = {
            part: {subject: measured(python, tree, modules) for subject, (python, tree) in subjects.items()}
            for part, modules in PARTS.items()
        }
    environment = {"before": args.before, "cpu": results.processor(), **results.machine()}
    results.write(
        {
            "what": "python -m measurements.scale.parts, see its documentation",
            "environment": environment,
            "parts": figures,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
