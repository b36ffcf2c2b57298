"""docs/faults.md and docs/results/faults/points.json, from the lines that campaigns wrote.

python3 -m tests.faults.publish [build/faults.jsonl]
"""

import json
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from localcluster.paths import REPOSITORY
from tests.faults.__main__ import RESULTS
from tests.faults.campaign import ENDED, LAWFUL, NOT_REACHED, SAME

STORED = REPOSITORY / "docs" / "results" / "faults" / "points.json"
PAGE = REPOSITORY / "docs" / "faults.md"
HEAD = (
    "part",
    "what it does",
    "points",
    "ends",
    "same as undisturbed",
    "clients of the GPU ended",
    "not reached",
    "different",
)
INTRODUCTION = """\
# Ended at every write

`make faults` ends each part at each of its writes, on a real cluster with simulated GPUs, while shares come and go,
limits change, clients start, depart in mid-kernel and fail. Afterwards everything must be as if nothing had ended:
every client goes on and its results are right, every share says what it should, a fresh client computes, and once all
is deleted nothing is left. Nobody helps.

No list of writes is kept by hand. The campaign's image has [a module](../tests/faults/injected/faultpoints.py) that
hears from Python and the libraries of each file that is opened to be written, replaced or removed, each directory,
link, signal and program, each request that changes something, each word to a socket file, and each answer to the
kubelet. A *point* is such a write with its callers. A process ends (as by a power cut, no handler runs) *before* it,
*after* it, and in the *middle*: half a file, half a message. What a watch of the API reports comes *late* (5 s),
*twice*, or is *missed* until the watch breaks.

Several ends share a run, each of another part or point; where anything is different, each is repeated alone.

| outcome | |
| --- | --- |
| same | nobody was harmed, nothing is left, nothing waits for a person |
| clients of the GPU ended | the MPS supervisor ended, and the MPS daemon with its container ([why](mps.md)) |
| not reached | the scene passed another way this time |
| different | a defect |
"""


def stored(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What is published. A later result of the same end takes the place of an earlier one."""
    latest = {(it["point"], it["when"]): it for it in lines if "outcome" in it}
    return {
        "environment": {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "python": platform.python_version(),
            "kernel": platform.release(),
        },
        "scenes": {it["undisturbed"]: len(it["points"]) for it in lines if "undisturbed" in it},
        "passages": _passages(lines),
        "ends": [latest[key] for key in sorted(latest)],
    }


def _passages(lines: list[dict[str, Any]]) -> dict[str, int]:
    """How often all scenes together pass each point."""
    found: Counter[str] = Counter()
    for line in lines:
        for point in line.get("points", []):
            found[point["text"]] += point["passages"]
    return dict(sorted(found.items()))


def page(campaign: dict[str, Any]) -> str:
    """docs/faults.md of a stored campaign."""
    ends = campaign["ends"]
    ended = {it["point"] for it in ends}
    lines = [INTRODUCTION, "## The last campaign", ""]
    lines.append(
        f"{campaign['environment']['date']}: {len(campaign['passages'])} points in {len(campaign['scenes'])} scenes, "
        f"{len(ended)} of them ended at, {len(ends)} ends ([each one](results/faults/points.json))."
    )
    lines += ["", "| " + " | ".join(HEAD) + " |", "| " + " | ".join(["---"] * len(HEAD)) + " |"]
    kinds = sorted({_kind(point) for point in campaign["passages"]})
    for role, kind in kinds:
        points = [point for point in campaign["passages"] if _kind(point) == (role, kind)]
        mine = [it["outcome"] for it in ends if _kind(it["point"]) == (role, kind)]
        counts = [mine.count(SAME), mine.count(ENDED), mine.count(NOT_REACHED), sum(it not in LAWFUL for it in mine)]
        lines.append("| " + " | ".join(map(str, (role, kind, len(points), len(mine), *counts))) + " |")
    different = [it for it in ends if it["outcome"] not in LAWFUL]
    if different:
        lines += ["", "Different:", ""]
        lines += [
            f"- {it['when']} `{it['point']}` ({it['scene']}): {it['outcome'].splitlines()[0][:300]}" for it in different
        ]
    return "\n".join(lines) + "\n"


def _kind(point: str) -> tuple[str, str]:
    role, _, rest = point.partition(": ")
    return role, rest.partition(" ")[0]


def main() -> int:
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    campaign = stored([json.loads(line) for line in source.read_text().splitlines()])
    STORED.parent.mkdir(parents=True, exist_ok=True)
    STORED.write_text(json.dumps(campaign, indent=1) + "\n")
    PAGE.write_text(page(campaign))
    return 0


if __name__ == "__main__":
    sys.exit(main())
