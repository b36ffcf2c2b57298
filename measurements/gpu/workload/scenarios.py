"""Every scenario of the workload on a real GPU under a private MPS daemon, each in less than a minute.

    python3 -m measurements.gpu.workload.scenarios OUT.json [NAME…]

Run as root on a machine with a GPU that nobody uses, CuPy, nvidia-ml-py and nvidia-cuda-mps-control on PATH. Ends every
process that it started. Exit code 0 if everything was as expected. The results, with the environment of the
measurement, are written after each part in any case. NAME chooses parts; all by default. What would begin after nine
minutes is left out, and said so: name it in another call.

With the simulated driver's GPUSHARE_SIMULATION_DIR and executables it runs without a GPU, and figures are not checked.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import THREADS, PrivateMps, without_mps
from measurements.gpu.workload.beside import BESIDE
from measurements.gpu.workload.cases import CASES, Case

BUDGET_SECONDS = 540.0
"""What would begin later is left out."""


def run(case: Case) -> dict[str, Any]:
    """`as_expected`: each run ended as expected, and its figures fulfil their conditions on a real GPU. `events`: those
    of all runs.
    """
    outcomes = [_run_once(case) for _ in range(case.runs)]
    codes = [outcome["exit_code"] for outcome in outcomes]
    return {
        "arguments": case.arguments,
        "mps": case.mps,
        "exit_code": next((code for code in codes if code != case.exit_code), case.exit_code),
        "events": [event for outcome in outcomes for event in outcome["events"]],
        "as_expected": all(_held(case, outcome) for outcome in outcomes),
    }


def _held(case: Case, outcome: dict[str, Any]) -> bool:
    held = bool(outcome["exit_code"] == case.exit_code)
    if held and not any(event.get("simulated") or event.get("timed") is False for event in outcome["events"]):
        held = case.holds(outcome["events"])
    return held


def _run_once(case: Case) -> dict[str, Any]:
    if case.mps:
        with (
            tempfile.TemporaryDirectory() as name,
            PrivateMps(Path(name), 2 * THREADS if case.threads == THREADS else 100) as mps,
        ):
            granted = mps.granted(case.threads, told=case.told)
            return mps.start(*case.arguments, environment=granted).end(case.seconds)
    return without_mps(*case.arguments).end(case.seconds)


def main(path: Path, names: list[str]) -> int:
    parts = {case.name: lambda case=case: run(case) for case in CASES} | BESIDE
    if unknown := set(names) - set(parts):
        print(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(parts)}", file=sys.stderr)
        return 2
    began = time.monotonic()
    environment = environment_block()
    results: dict[str, Any] = {}
    expected: dict[str, bool] = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in names or parts:
        part_began = time.monotonic()
        if part_began - began > BUDGET_SECONDS:
            results[name] = {"as_expected": False, "left_out": "no time was left"}
        else:
            try:
                results[name] = parts[name]()
            except Exception as error:  # noqa: BLE001 - the other parts have something to say too
                results[name] = {"as_expected": False, "failed": f"{type(error).__name__}: {error}"}
        expected[name] = results[name]["as_expected"]
        results[name]["took_seconds"] = round(time.monotonic() - part_began, 1)
        print(f"{'ok  ' if expected[name] else 'FAIL'} {results[name]['took_seconds']:6} s  {name}", flush=True)
        everything = {**results, "as_expected": expected, "environment": environment}
        path.write_text(json.dumps(everything, indent=2) + "\n")
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0 if all(expected.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2:]))
