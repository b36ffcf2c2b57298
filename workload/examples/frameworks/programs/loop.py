"""The loop of a program that is measured: one step after the other until SIGTERM, and a JSON line twice a second.

With the variable OFFERED_RATE the loop is open: so much work per second arrives at random moments, whether the program
is done with what came before or not, and a latency counts from the arrival.

    {"program": "resnet infer", "unit": "images", "rate": 3810.2, "latency_ms": [2.1, 2.0], "steps": 2}

`rate` is the work per second since the line before. `latency_ms` has each step, from its start to the end of the wait
for the GPU. SIGTERM ends the program between two steps: under MPS, who dies in mid-kernel ends the neighbours too.
"""

import argparse
import json
import os
import random
import signal
import time
from collections.abc import Callable

PRINT_SECONDS = 0.5
WARM_UP_STEPS = 5
MOST_LATENCIES = 1000
"""In one line: the last ones."""


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that all programs have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--tiny", action="store_true", help="a model that a CPU runs in milliseconds: to try the program"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="0: until SIGTERM (default)")
    return parser


def repeat(program: str, unit: str, work: int, step: Callable[[], None], seconds: float = 0.0) -> None:
    """`step` does `work` units and returns when the GPU has done them. `seconds` 0: until SIGTERM."""
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.append(True))
    for _ in range(WARM_UP_STEPS):
        if asked:
            return
        step()
    end = time.perf_counter() + seconds if seconds else None
    printed, latencies = time.perf_counter(), []
    steps, arrival = float(os.environ.get("OFFERED_RATE", 0)) / work, time.perf_counter()
    while not asked:
        begin = time.perf_counter()
        if steps:
            arrival += random.expovariate(steps)
            time.sleep(max(0.0, arrival - begin))
            begin = arrival
        step()
        now = time.perf_counter()
        latencies.append(round((now - begin) * 1000, 3))
        over = end is not None and now >= end
        if now - printed >= PRINT_SECONDS or over:
            rate = work * len(latencies) / (now - printed)
            line = {"program": program, "unit": unit, "rate": round(rate, 3), "latency_ms": latencies[-MOST_LATENCIES:]}
            print(json.dumps({**line, "steps": len(latencies)}), flush=True)
            printed, latencies = now, []
        if over:
            return
