"""`make faults`: ends each part at each of its writes on a real cluster, and prints what is different afterwards.

A campaign goes on where it stopped: what its file of results has is not done again. `--list` shows the points of it,
`--point TEXT` runs those that contain the text, again.
"""

import argparse
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from localcluster.cluster import cluster
from localcluster.images.buildah import Image, build_images
from localcluster.paths import REPOSITORY, cache_root
from localcluster.stack import embedded, install
from tests.cluster.harness import Harness
from tests.faults.campaign import LAWFUL, Campaign
from tests.faults.groups import groups
from tests.faults.image import with_faultpoints
from tests.faults.points import OF_WATCHES, OF_WRITES, Order, Point, Recorder
from tests.faults.scenes import SCENES

RESULTS = REPOSITORY / "build" / "faults.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.faults", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"lines of JSON (default: {RESULTS})")
    parser.add_argument(
        "--minutes", type=float, default=600, help="begin no further point after so many (default: 600)"
    )
    parser.add_argument("--scene", action="append", choices=SCENES, help="this one alone; may be repeated")
    parser.add_argument("--point", default="", help="points whose text contains this alone, done or not")
    parser.add_argument("--when", choices=(*OF_WRITES, *OF_WATCHES), help="this moment alone")
    parser.add_argument("--cluster", default="faults", help="name of the cluster (default: faults)")
    parser.add_argument("--keep-cluster", action="store_true", help="leave it up; the next campaign uses it again")
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60
    with _harness(options.cluster, options.keep_cluster) as (harness, recorder):
        campaign = Campaign(harness, recorder, options.results)
        return _run(campaign, options, end)


def _run(campaign: Campaign, options: argparse.Namespace, end: float) -> int:
    outcomes: Counter[bool] = Counter()
    for scene in options.scene or SCENES:
        orders = _left(campaign.points(scene), campaign, options)
        runs = deque([[it] for it in orders] if options.point else groups(orders))
        print(f"{scene}: {len(orders)} orders left, in {len(runs)} runs", flush=True)
        while runs:
            if time.monotonic() > end:
                print("the time is up: the next campaign goes on here", flush=True)
                return int(bool(outcomes[False]))
            run = runs.popleft()
            results = campaign.run(scene, run)
            for result in results:
                outcomes[result.outcome in LAWFUL] += 1
                print(f"  {result.when} {result.point}: {result.outcome} ({result.seconds:.0f} s)", flush=True)
            told = {(it.point, it.when) for it in results}
            alone = [[it] for it in run if (it.point.text, it.when) not in told]
            if alone:
                print(f"  {len(alone)} of a run of {len(run)}: each alone", flush=True)
                runs.extendleft(alone)
    print(f"{outcomes[True]} as they should be, {outcomes[False]} not; all of them in {options.results}")
    return int(bool(outcomes[False]))


def _left(points: list[Point], campaign: Campaign, options: argparse.Namespace) -> list[Order]:
    """A point that several scenes pass belongs to the first."""
    done = set() if options.point else campaign.done()
    return [
        Order(point, when)
        for point in points
        for when in point.moments()
        if options.point in point.text and options.when in (None, when) and (point.text, when) not in done
    ]


@contextmanager
def _harness(name: str, keep: bool) -> Iterator[tuple[Harness, Recorder]]:
    stack = embedded(name)
    try:
        operator = build_images(cache_root())["operator"]
        image: Image = with_faultpoints(cache_root(), operator)
        cluster.load_images(cluster.running(name), [Path(image.archive)])
        harness = Harness(replace(stack, operator_image=image.image))
        recorder = Recorder(harness)
        recorder.begin()
        install(harness.stack)
        harness.begin()
        yield harness, recorder
    finally:
        if not keep:
            cluster.down(name)


if __name__ == "__main__":
    sys.exit(main())
