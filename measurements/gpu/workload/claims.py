"""Clients with different claims on one real GPU: does each get its percentage of threads and its memory?

    python3 -m measurements.gpu.workload.claims OUT.json

Every client has the variables that the agent writes into the CDI spec of its claim. Each is measured alone, then all of
them at once, interleaved, and checks its own limits each time: SMs, free memory, a refused allocation above it. Needs
what `scenarios` beside it needs, and ends every process that it started; exit code 0 where everything was as expected.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpushare.agent.dra.prepared import PreparedClaim, PreparedPart, spec
from gpushare.grant.model import Grant
from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import PrivateMps, Program

CLAIMS = [(10, 4096), (20, 8192), (30, 16384), (40, 32768)]
"""(percent of threads, MiB)."""
ROUNDS = 2
SECONDS = "5"
FAIR = 1.1
"""Clients' throughput by granted SM may differ by that much: clocks, and the work that is left over at the end."""


def variables(threads: int, memory_mib: int) -> dict[str, str]:
    """The variables of a container by the CDI spec of its claim."""
    part = PreparedPart("GPU-0", "gpu", "node", "gpu-0", "", Grant("mixed", threads, memory_mib, 1))
    [device] = spec(PreparedClaim("claim", "team", "claim", (part,)))["devices"]
    return dict(variable.split("=", 1) for variable in device["containerEdits"]["env"])


def start(mps: PrivateMps, claim: tuple[int, int]) -> Program:
    environment = mps.environment | {
        name: value for name, value in variables(*claim).items() if not name.endswith("_DIRECTORY")
    }
    return mps.start("limits", "--throughput", SECONDS, environment=environment)


def outcome(program: Program) -> dict[str, Any]:
    ended = program.end(60)
    told = {event["event"]: event for event in ended["events"]}
    seen, throughput = told.get("limits", {}), told.get("throughput", {})
    return {
        "exit_code": ended["exit_code"],
        "granted": seen.get("granted"),
        "observed": seen.get("observed"),
        "problems": seen.get("problems"),
        "share_of_peak": throughput.get("share_of_peak"),
        "granted_share": throughput.get("granted_share"),
        **({} if ended["exit_code"] == 0 else {"events": ended["events"]}),
    }


def follows(round_: list[dict[str, Any]]) -> bool:
    """Tells whether all got the same throughput by granted SM."""
    if any(client["exit_code"] or not client["share_of_peak"] for client in round_):
        return False
    by_sm = [client["share_of_peak"] / client["granted_share"] for client in round_]
    return bool(max(by_sm) / min(by_sm) <= FAIR)


def measure() -> dict[str, Any]:
    alone: list[list[dict[str, Any]]] = []
    together: list[list[dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as name, PrivateMps(Path(name), 60, 65536) as mps:
        for _ in range(ROUNDS):
            alone.append([outcome(start(mps, claim)) for claim in CLAIMS])
            programs = [start(mps, claim) for claim in CLAIMS]
            together.append([outcome(program) for program in programs])
    simulated = not alone[0][0]["share_of_peak"]
    held = [simulated or follows(round_) for round_ in together]
    limits = [client["exit_code"] == 0 for round_ in (*alone, *together) for client in round_]
    return {"claims": CLAIMS, "alone": alone, "together": together, "as_expected": all(held) and all(limits)}


def main(path: Path) -> int:
    results = {**measure(), "environment": environment_block()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    for kind in ("alone", "together"):
        for round_ in results[kind]:
            print(kind, [client["share_of_peak"] for client in round_], [client["problems"] for client in round_])
    print("as expected" if results["as_expected"] else "NOT as expected")
    return 0 if results["as_expected"] else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
