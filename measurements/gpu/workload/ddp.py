"""Distributed data parallel on two or more GPUs: one rank on each, and refusals before NCCL could hang.

    pip install 'gpushare[torch]'      # or: pip install --require-hashes -r requirements/torch.lock
    python3 -m measurements.gpu.workload.ddp OUT.json

Exit code 0 if everything was as expected; the results are written in any case.
"""

import json
import sys
from pathlib import Path
from typing import Any

from gpushare_workload.gpus import inventory
from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import Events, without_mps

SECONDS = 180.0


def trained(events: Events, ranks: int) -> bool:
    figure = events[-1]
    return figure["event"] == "measured" and len(set(figure["devices"])) == ranks


def refused(events: Events) -> bool:
    return events[-1]["event"] == "usage" and "NCCL takes one rank per GPU" in events[-1]["message"]


def main(path: Path) -> int:
    gpus = len(inventory.visible())
    if gpus < 2:
        print(f"{gpus} GPUs are visible: two are needed", file=sys.stderr)
        return 2
    results: dict[str, Any] = {}
    for name, ranks, exit_code in (
        ("one_rank", 1, 0),
        ("a_rank_on_each_gpu", gpus, 0),
        ("one_rank_more_than_gpus", gpus + 1, 2),
    ):
        outcome = without_mps("ddp", "--ranks", str(ranks)).end(SECONDS)
        held = outcome["exit_code"] == exit_code
        held = held and (refused(outcome["events"]) if exit_code else trained(outcome["events"], ranks))
        results[name] = {**outcome, "as_expected": held}
        print(f"{'ok  ' if held else 'FAIL'} {name}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": environment_block(), **results}, indent=2) + "\n")
    return 0 if all(result["as_expected"] for result in results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
