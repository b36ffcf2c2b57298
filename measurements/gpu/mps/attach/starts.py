"""Measures where the time goes when many programs start on one GPU at once: Python's imports, CUDA's context, the first
kernel.

    python3 -m measurements.gpu.mps.attach.starts OUT.json  as root on an idle GPU, nvidia-cuda-mps-control on PATH

All processes of a case start at the same moment, without MPS and as clients of one bare MPS daemon, in turns. Each says
when it had imported CuPy, had its context, and had the result of its first kernel, in seconds since its start.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import PrivateMps

AT_ONCE = (1, 8, 24)
REPEATS = 3
STEPS = ("imported", "context", "kernel")
SECONDS = 120.0
PROGRAM = """
import json, sys, time
began = float(sys.argv[1])
def since():
    return round(time.clock_gettime(time.CLOCK_BOOTTIME) - began, 3)
import cupy
imported = since()
cupy.cuda.runtime.free(0)
context = since()
kernel = cupy.RawKernel('extern "C" __global__ void one(float* x) { x[0] += 1.0f; }', "one")
data = cupy.zeros(1, dtype=cupy.float32)
kernel((1,), (1,), (data,))
assert float(data[0]) == 1.0
print(json.dumps({"imported": imported, "context": context, "kernel": since()}), flush=True)
sys.stdin.readline()
"""
"""Holds its context until a line comes, so that all of a case have theirs at the same time."""


def start(count: int, environment: dict[str, str]) -> list[dict[str, float]]:
    """The steps of `count` processes that start at once. Raises RuntimeError if one of them fails."""
    processes = []
    try:
        for _ in range(count):
            began = str(time.clock_gettime(time.CLOCK_BOOTTIME))
            command = [sys.executable, "-c", PROGRAM, began]
            pipe = subprocess.PIPE
            processes.append(subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True))
        lines = [process.stdout.readline() for process in processes if process.stdout]
        if not all(lines):
            raise RuntimeError(f"{lines.count('')} of {count} processes failed: see their standard error")
        return [json.loads(line) for line in lines]
    finally:
        for process in processes:
            try:
                process.communicate("\n", timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def summary(runs: list[list[dict[str, float]]]) -> dict[str, Any]:
    """The step of the last process of each run: its median over the runs, with the least and the largest."""
    last = {step: [max(process[step] for process in run) for run in runs] for step in STEPS}
    return {
        step: {"median": median(values), "least": min(values), "largest": max(values)} for step, values in last.items()
    }


def main() -> int:
    [out] = [Path(argument) for argument in sys.argv[1:]]
    runs: dict[str, list[list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        with PrivateMps(directory, 100, 16384) as mps:
            cached = os.environ | {"CUPY_CACHE_DIR": str(directory / "cache")}
            ways = {
                "without MPS": cached | {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"},
                "under MPS": cached | mps.environment,
            }
            start(1, ways["without MPS"])  # fills the cache of kernels and of files
            for _ in range(REPEATS):
                for count in AT_ONCE:
                    for way, environment in ways.items():
                        runs.setdefault(f"{count} {way}", []).append(start(count, environment))
                        print(f"{count} {way}: {json.dumps(summary(runs[f'{count} {way}'][-1:]))}", flush=True)
    result = {
        "suite": "starts",
        "repeats": REPEATS,
        "cpus": os.cpu_count(),
        "last of the processes, seconds since its start": {case: summary(some) for case, some in runs.items()},
        "runs": runs,
        "environment": environment_block(),
    }
    out.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
