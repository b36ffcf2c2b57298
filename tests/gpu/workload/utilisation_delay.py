"""How long NVML's utilisation of a GPU lags behind what the GPU does.

    python3 -m tests.gpu.workload.utilisation_delay OUT.json        on an idle GPU, with CuPy; half a minute

A program keeps the GPU busy for BUSY_SECONDS, again and again, after as long a pause. Meanwhile NVML is read each
POLL_SECONDS. `rise`: from the first kernel to the first reading of at least HIGH percent. `fall`: from the end of the
last kernel to the first reading of at most LOW. gpushare_workload takes no reading of a window before SETTLED_SECONDS.
Exit code 0: no rise or fall was longer than that.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpushare.trial.spread import Spread
from gpushare_workload.gpus import inventory
from gpushare_workload.gpus.monitor import SETTLED_SECONDS, GpuMonitor
from tests.gpu.environment import environment_block

ROUNDS, BUSY_SECONDS, POLL_SECONDS = 10, 1.0, 0.01
HIGH, LOW = 90.0, 10.0
PROGRAM = """
import sys, time
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
    return began, time.monotonic()
busy(0.1)
print("ready", flush=True)
for line in sys.stdin:
    print(*busy(float(line)), flush=True)
"""
"""Answers a number of seconds with the beginning and the end of so much work, by the monotonic clock."""


def one_round(monitor: GpuMonitor, program: "subprocess.Popen[str]") -> dict[str, float | None]:
    assert program.stdin is not None
    assert program.stdout is not None
    time.sleep(BUSY_SECONDS)
    print(BUSY_SECONDS, file=program.stdin, flush=True)
    readings, end = [], time.monotonic() + 2 * BUSY_SECONDS
    while (now := time.monotonic()) < end:
        readings.append((now, monitor.usage().busy_percent))
        time.sleep(POLL_SECONDS)
    began, ended = map(float, program.stdout.readline().split())
    known = [(at, percent) for at, percent in readings if percent is not None]
    return {
        "rise": next((at - began for at, percent in known if at >= began and percent >= HIGH), None),
        "fall": next((at - ended for at, percent in known if at >= ended and percent <= LOW), None),
    }


def summary(rounds: Sequence[dict[str, float | None]], name: str) -> dict[str, Any]:
    found = [value for one in rounds if (value := one[name]) is not None]
    spread = {key: round(value, 3) for key, value in Spread.of(found).as_json().items()} if found else None
    return {"seconds": spread, "not_seen": len(rounds) - len(found)}


def main() -> int:
    [out] = [Path(argument) for argument in sys.argv[1:]]
    monitor, pipe = inventory.open_monitor(), subprocess.PIPE
    if monitor is None:
        raise SystemExit("this machine has no NVML")
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            if program.stdout.readline() != "ready\n":
                raise RuntimeError("the program that keeps the GPU busy does not start: see its standard error")
            rounds = [one_round(monitor, program) for _ in range(ROUNDS)]
        finally:
            program.stdin.close()
    found = {name: summary(rounds, name) for name in ("rise", "fall")}
    longest = max(it["seconds"]["largest"] if it["seconds"] and not it["not_seen"] else 99.0 for it in found.values())
    result = {**found, "rounds": rounds, "settled_seconds": SETTLED_SECONDS, "holds": longest <= SETTLED_SECONDS}
    out.write_text(json.dumps({**result, "environment": environment_block()}, indent=2) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "rounds"}))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
