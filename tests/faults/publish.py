"""measurements/pages/faults.md, from measurements/results/faults/points.json.

python3 -m tests.faults.publish
"""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from localcluster.paths import REPOSITORY
from tests.faults.points import Point
from tests.faults.record import ENDED, LAWFUL, NOT_REACHED, SAME, STORED
from tests.page_tables import head_of, line_of

PAGE = REPOSITORY / "measurements" / "pages" / "faults.md"
COUNTS = ("ends", "same as undisturbed", "clients of the GPU ended", "not reached", "different")
INTRODUCTION = """\
# Ended at every write

`make faults` ends each part at each of its writes, on a real cluster with simulated GPUs, while shares come and go,
limits change, clients start, depart in mid-kernel and fail, claims of different sizes are made, clients above their
grant are ended, MPS pods are replaced, the node is drained, and gpushare is uninstalled. Afterwards everything must be
as if nothing had ended: every client goes on and its results are right, every share says what it should, a fresh
client computes, and once all is deleted nothing is left. Nobody helps.

No list of writes is kept by hand. The campaign's image has [a module](../../tests/faults/injected/faultpoints.py) that
hears from Python and the libraries of each file that is opened to be written, replaced or removed, each directory,
link, signal and program, each request that changes something, each word to a socket file, and each answer to the
kubelet. A *point* is such a write with its callers. A process ends (as by a power cut, no handler runs) *before* it,
*after* it, and in the *middle*: half a file, half a message. What a watch of the API reports comes *late* (5 s),
*twice*, or is *missed* until the watch breaks.

Several ends share a run, each of another part or point; where anything is different, its halves are repeated, down to
the single end. A scene whose code has changed since it was played is played undisturbed first. `make faults` goes on
from what is published here, and tries again what was different; `make faults AFRESH=1` begins anew.

| outcome | |
| --- | --- |
| same | nobody was harmed, nothing is left, nothing waits for a person |
| clients of the GPU ended | the MPS supervisor did, and the MPS daemon with it ([why](../../docs/mps.md)) |
| not reached | the scene passed another way this time |
| different | a defect |

## What it has found

- `helm uninstall` with `uninstall.shares: Delete` failed for good where the pod of its Job was ended as it
  deleted a share. Another pod goes on now.
- A kubelet keeps the resource of a share with slots for five minutes after the share is gone, and starts no container
  of a share by claims that has the same name meanwhile ([what is told](../../docs/troubleshooting.md)). No end is
  needed for that.
- A client that goes on without its contexts after its MPS daemon has ended (it catches the error and stays) keeps the
  next server from the GPU until it ends, on simulated GPUs. Nothing said so; the share's condition now names its PID.
  Clients above their grant end by themselves in these scenes, but where they were terminated.
- A supervisor that had ended its MPS daemon could write its state once more while the agent removed the GPU's
  directory, which then stayed for good. The agent removes such a rest now.
"""


def page(campaign: dict[str, Any]) -> str:
    """measurements/pages/faults.md of a campaign, as `record` stores it."""
    points, ends = campaign["points"], campaign["ends"]
    ended = {it["point"] for it in ends}
    dates = sorted(it["date"] for it in ends) or [campaign["environment"]["date"]]
    lines = [INTRODUCTION, "## The last campaign", ""]
    possible = sum(map(_moments, points.items()))
    runs = {(it["scene"], it["date"], it["seconds"]) for it in ends}
    hours = sum(seconds for _, _, seconds in runs) / 3600
    lines.append(
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}: {len(points)} points, {len(ended)} of them ended at; "
        f"{len(ends)} ends of the {possible} that are possible ([each one](../results/faults/points.json)). "
        f"Runs: {len(runs)}, {hours:.1f} hours together."
    )
    lines += ["", *_table(("scene", "undisturbed", "points", *COUNTS), _scenes(campaign))]
    lines += ["", "The ends at a point of several scenes are divided among them.", ""]
    lines += _table(("part", "what it does", "points", "possible ends", *COUNTS), _kinds(points, ends))
    different = [it for it in ends if it["outcome"] not in LAWFUL]
    if different:
        lines += ["", "Different:", ""]
        lines += [
            f"- {it['when']} `{it['point']}` ({it['scene']}): {it['outcome'].splitlines()[0][:300]}" for it in different
        ]
    return "\n".join(lines) + "\n"


def _scenes(campaign: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for scene, played in campaign["scenes"].items():
        passed = sum(scene in it["passages"] for it in campaign["points"].values())
        took = f"{played['seconds']:.0f} s" if played["seconds"] else "not measured"
        yield scene, took, passed, *_counts(it for it in campaign["ends"] if it["scene"] == scene)


def _kinds(points: dict[str, dict[str, Any]], ends: list[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for kind in sorted({_kind(point) for point in points}):
        mine = [it for it in points.items() if _kind(it[0]) == kind]
        counts = _counts(it for it in ends if _kind(it["point"]) == kind)
        yield *kind, len(mine), sum(map(_moments, mine)), *counts


def _moments(point: tuple[str, dict[str, Any]]) -> int:
    """In how many ways the point can be ended at."""
    text, stored = point
    return len(Point(text, stored["partly"]).moments())


def _kind(point: str) -> tuple[str, str]:
    role, _, rest = point.partition(": ")
    return role, rest.partition(" ")[0]


def _counts(ends: Iterable[dict[str, Any]]) -> tuple[int, ...]:
    """In the order of COUNTS."""
    found = [it["outcome"] for it in ends]
    return len(found), *(found.count(it) for it in (SAME, ENDED, NOT_REACHED)), sum(it not in LAWFUL for it in found)


def _table(head: Iterable[str], rows: Iterable[tuple[object, ...]]) -> list[str]:
    return [*head_of(*head), *(line_of(*map(str, row)) for row in rows)]


def main() -> int:
    PAGE.write_text(page(json.loads(STORED.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
