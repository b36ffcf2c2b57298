"""How long NVML's utilisation of a GPU lags behind what the GPU does.

    python3 -m measurements.gpu.workload.utilisation_delay OUT.json  on an idle GPU, with CuPy; half a minute

A program keeps the GPU busy for BUSY_SECONDS, again and again, after a pause that is as long or longer. Meanwhile NVML
is read each POLL_SECONDS. `rise`: from the first kernel to the first reading of at least HIGH percent. `fall`: from the
end of the last kernel to the first reading of at most LOW. gpushare_workload takes no reading of a window before
SETTLED_SECONDS. Exit code 0: no rise or fall was longer than that.
"""

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.gpus import inventory
from gpushare_workload.gpus.monitor import SETTLED_SECONDS, GpuMonitor
from measurements.gpu.client import Client
from measurements.gpu.environment import environment_block

ROUNDS, BUSY_SECONDS, POLL_SECONDS = 10, 1.0, 0.01
HIGH, LOW = 90.0, 10.0
PROGRAM = """
import json, sys, time
import cupy
source = 'extern "C" __global__ void spin() { long long began = clock64(); while (clock64() - began < 1000000); }'
spin = cupy.RawKernel(source, "spin")
stream = cupy.cuda.get_current_stream()
def busy(seconds):
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        for _ in range(20):
            spin((1,), (1,), ())
        stream.synchronize()
    print(json.dumps({"began": began, "ended": time.monotonic()}), flush=True)
busy(0.1)
for line in sys.stdin:
    busy(float(line))
"""
"""Answers a number of seconds with the beginning and the end of so much work, by the monotonic clock; once unasked."""


def worked(program: Client) -> tuple[float, float]:
    """The moments at which the work began and ended. RuntimeError: it says nothing, or has ended."""
    answer = program.answer()
    if "error" in answer:
        raise RuntimeError(f"the program that keeps the GPU busy {answer['error']}: see its standard error")
    return answer["began"], answer["ended"]


def one_round(monitor: GpuMonitor, program: Client) -> dict[str, float | None]:
    program.ask(str(BUSY_SECONDS))
    readings, end = [], time.monotonic() + 2 * BUSY_SECONDS
    while time.monotonic() < end:
        percent = monitor.usage().busy_percent
        if percent is not None:
            readings.append((time.monotonic(), percent))
        time.sleep(POLL_SECONDS)
    began, ended = worked(program)
    return {
        "rise": next((at - began for at, percent in readings if at >= began and percent >= HIGH), None),
        "fall": next((at - ended for at, percent in readings if at >= ended and percent <= LOW), None),
    }


def summary(rounds: Sequence[dict[str, float | None]], name: str) -> dict[str, Any]:
    seen = [value for each in rounds if (value := each[name]) is not None]
    spread = {key: round(value, 3) for key, value in Spread.of(seen).as_json().items()} if seen else None
    return {"seconds": spread, "not_seen": len(rounds) - len(seen)}


def main() -> int:
    [out] = [Path(argument) for argument in sys.argv[1:]]
    monitor = inventory.open_monitor()
    if monitor is None:
        raise SystemExit("this machine has no NVML")
    program = Client([sys.executable, "-c", PROGRAM], dict(os.environ))
    try:
        worked(program)
        time.sleep(BUSY_SECONDS)
        rounds = [one_round(monitor, program) for _ in range(ROUNDS)]
    finally:
        program.end()
    summaries = {name: summary(rounds, name) for name in ("rise", "fall")}
    longest = max(math.inf if value is None else value for each in rounds for value in each.values())
    result = {**summaries, "rounds": rounds, "settled_seconds": SETTLED_SECONDS, "holds": longest <= SETTLED_SECONDS}
    out.write_text(json.dumps({**result, "environment": environment_block()}, indent=2) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "rounds"}))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
