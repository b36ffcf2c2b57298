"""The effects of programs on each other on one GPU: departures, faults, an endless kernel, several services."""

import tempfile
import time
from pathlib import Path
from typing import Any

from measurements.gpu.private_mps import PrivateMps, Program

NEIGHBOURS = 3
KERNEL_MS = 200
FAULTS = {"illegal-address": (700, 700), "trap": (719, 719), "assert": (710, None)}
"""What the culprit gets, and its neighbours; None: nothing (measured)."""


def neighbours(mps: PrivateMps, number: int = NEIGHBOURS) -> list[Program]:
    """Programs that check their results; all have begun."""
    started = [mps.start("fault", "--report-every", "0.2") for _ in range(number)]
    for program in started:
        program.wait_for("progress")
    return started


def ended(programs: list[Program]) -> list[dict[str, Any]]:
    """Exit code and last line of each program. Those that still run get SIGTERM."""
    outcomes = [program.terminate() if program.process.poll() is None else program.end() for program in programs]
    return [{"exit_code": program["exit_code"], "last": program["events"][-1]} for program in outcomes]


def departure(guarded: bool) -> dict[str, Any]:
    """A victim dies in mid-kernel; `guarded`: the daemon terminates it first."""
    with tempfile.TemporaryDirectory() as name, PrivateMps(Path(name)) as mps:
        beside = neighbours(mps)
        victim = mps.start("depart", "--role", "victim", "--kernel-ms", str(KERNEL_MS))
        victim.wait_for("started")
        time.sleep(1.5 * KERNEL_MS / 1000 + 0.5)
        servers = mps.control.server_list()
        terminated = guarded and any(mps.control.terminate_client(each, victim.pid) for each in servers)
        victim.process.kill()
        victim.end()
        time.sleep(2)
        outcomes = ended(beside)
    hurt = [each["last"].get("code") for each in outcomes]
    held = terminated and hurt == [None] * NEIGHBOURS if guarded else hurt == [700] * NEIGHBOURS
    return {"terminated": terminated, "kernel_ms": KERNEL_MS, "neighbours": outcomes, "as_expected": held}


def fault(kind: str) -> dict[str, Any]:
    """One program's kernel fails beside others. Each has its own daemon, because a fatal fault is not over at once."""
    culprits, others = FAULTS[kind]
    with tempfile.TemporaryDirectory() as name, PrivateMps(Path(name)) as mps:
        beside = neighbours(mps)
        faulty = mps.start("fault", "--role", "faulty", "--fault", kind, "--after", "0").end()
        time.sleep(1)
        outcomes = ended(beside)
    held = faulty["exit_code"] == 0 and faulty["events"][-1]["code"] == culprits
    held = held and [outcome["last"].get("code") for outcome in outcomes] == [others] * NEIGHBOURS
    return {"faulty": faulty, "neighbours": outcomes, "as_expected": held}


def endless() -> dict[str, Any]:
    """An endless kernel on all SMs of its client ends in order on SIGTERM, and hurts nobody."""
    with tempfile.TemporaryDirectory() as name, PrivateMps(Path(name)) as mps:
        beside = neighbours(mps)
        hog = mps.start("hog", "--endless", "--hold", "0")
        hog.wait_for("holding")
        time.sleep(2)
        left = hog.terminate()
        time.sleep(1)
        outcomes = ended(beside)
    held = (
        left["exit_code"] == 0 and left["seconds_to_end"] < 2 and all(outcome["exit_code"] == 0 for outcome in outcomes)
    )
    return {"hog": left, "neighbours": outcomes, "as_expected": held}


def services(number: int = 4) -> dict[str, Any]:
    """Services that start together, like pods on one GPU."""
    with tempfile.TemporaryDirectory() as name, PrivateMps(Path(name)) as mps:
        start_at = str(time.time() + 15)
        options = ("serve", "--rate", "200", "--duration", "5", "--start-at", start_at)
        outcomes = [outcome.end(60) for outcome in [mps.start(*options, "--seed", str(seed)) for seed in range(number)]]
    return {"services": outcomes, "as_expected": all(outcome["exit_code"] == 0 for outcome in outcomes)}


BESIDE = {
    "departure_guarded": lambda: departure(guarded=True),
    "departure_unguarded": lambda: departure(guarded=False),
    **{f"fault_{kind.replace('-', '_')}": lambda kind=kind: fault(kind) for kind in FAULTS},
    "endless_kernel": endless,
    "services_beside_each_other": services,
}
