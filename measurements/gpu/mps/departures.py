"""The neighbours that a killed client takes along, by the length of its kernels, with and without an ordered departure.

    python3 -m measurements.gpu.mps.departures OUT.json [--kills N]

Run as root on a GPU that nobody uses, CuPy and nvidia-cuda-mps-control on PATH. For each length of kernel, clients that
run it back to back are killed one after the other beside three that check their results; `guarded`: the daemon
terminates each of them first. A round ends with the first kill that hurts a neighbour. Exit code 0: no guarded kill
did.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import PrivateMps
from measurements.gpu.workload.beside import NEIGHBOURS, ended, neighbours

KERNELS_MS = (1, 5, 10, 20, 50, 100)
BUDGET_SECONDS = 420.0
WATCHED_SECONDS = 0.4
"""A neighbour checks every 20 ms, and a fault is with it at its next call."""


def kill_one(mps: PrivateMps, kernel_ms: int, guarded: bool) -> float:
    """Returns the duration of `terminate_client` in ms; 0 without it."""
    victim = mps.start("depart", "--role", "victim", "--kernel-ms", str(kernel_ms))
    victim.wait_for("started")
    time.sleep(max(0.1, 2.5 * kernel_ms / 1000))
    took = 0.0
    if guarded:
        began = time.monotonic()
        server = mps.control.server_list()[0]
        if not mps.control.terminate_client(server, victim.pid):
            raise RuntimeError(f"the daemon did not end client {victim.pid}")
        took = (time.monotonic() - began) * 1000
    victim.process.kill()
    victim.end()
    return took


def round_of_kills(kernel_ms: int, guarded: bool, kills: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, PrivateMps(Path(name)) as mps:
        beside, done, took = neighbours(mps), 0, []
        while done < kills and all(client.process.poll() is None for client in beside):
            took.append(kill_one(mps, kernel_ms, guarded))
            done += 1
            time.sleep(WATCHED_SECONDS)
        outcomes = ended(beside)
    hurt = sum(client["exit_code"] != 0 for client in outcomes)
    figure = {"kernel_ms": kernel_ms, "guarded": guarded, "kills": done, "neighbours": NEIGHBOURS, "hurt": hurt}
    checks = sum(client["last"].get("checks", 0) for client in outcomes)
    codes = sorted({client["last"]["code"] for client in outcomes if "code" in client["last"]})
    return {**figure, "codes": codes, "checks": checks, "terminate_ms_most": round(max(took), 1) if guarded else None}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=10, help="at most, in each round")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    end, rounds = time.monotonic() + BUDGET_SECONDS, []
    environment = environment_block()
    for kernel_ms in KERNELS_MS:
        for guarded in (True, False):
            if time.monotonic() < end:
                rounds.append(round_of_kills(kernel_ms, guarded, arguments.kills))
                print(json.dumps(rounds[-1]), flush=True)
                result = {"rounds": rounds, "environment": environment}
                arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    complete = len(rounds) == 2 * len(KERNELS_MS)
    return 0 if complete and not any(result["hurt"] for result in rounds if result["guarded"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
