"""`make faults`: ends each part at each of its writes on a real cluster, and prints what is different afterwards.

A campaign goes on where the published one stopped: what its record has is not done again, but for what was different.
`--point TEXT` runs the points that contain the text, again.
"""

import argparse
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from localcluster.cluster import cluster
from localcluster.images.buildah import Image, build_images
from localcluster.kubectl import CommandError
from localcluster.paths import cache_root
from localcluster.stack import NAMESPACE, embedded, install, prepare_namespace
from tests.cluster.harness import Harness
from tests.cluster.node import restart_within
from tests.faults import publish
from tests.faults.campaign import Campaign
from tests.faults.groups import divided, groups
from tests.faults.image import with_faultpoints
from tests.faults.mounts import NODE_DIRECTORY, mount_everywhere
from tests.faults.points import OF_WATCHES, OF_WRITES, Order, Point, Recorder
from tests.faults.record import LAWFUL, STORED, Record, Result
from tests.faults.scenes import SCENES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.faults", description=__doc__)
    parser.add_argument("--record", type=Path, default=STORED, help=f"(default: {STORED}, which has a page)")
    parser.add_argument("--afresh", action="store_true", help="forget what the record has")
    parser.add_argument("--minutes", type=float, default=600, help="begin no further run after so many (default: 600)")
    parser.add_argument("--scene", action="append", choices=SCENES, help="this one alone; may be repeated")
    parser.add_argument("--point", default="", help="points whose text contains this alone, done or not")
    parser.add_argument("--when", choices=(*OF_WRITES, *OF_WATCHES), help="this moment alone")
    parser.add_argument("--cluster", default="faults", help="name of the cluster (default: faults)")
    parser.add_argument("--keep-cluster", action="store_true", help="leave it up; the next campaign uses it again")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # also in the background: the cluster ends, the page is made
        signal.signal(number, signal.default_int_handler)
    end = time.monotonic() + options.minutes * 60
    record = Record(options.record, afresh=options.afresh)
    try:
        with _harness(options.cluster, options.keep_cluster) as (harness, recorder):
            return _run(Campaign(harness, recorder, record), options, end)
    finally:
        if options.record == STORED:
            publish.main()


def _run(campaign: Campaign, options: argparse.Namespace, end: float) -> int:
    """Scenes take turns, one run each: a short campaign has something of each."""
    outcomes: Counter[bool] = Counter()
    passed = _passed(campaign, options.scene or SCENES, end)
    outcomes[False] += sum(points is None for points in passed.values())
    settled = set() if options.point else campaign.record.settled()

    def wanted(order: Order) -> bool:
        chosen = options.point in order.point.text and options.when in (None, order.when)
        return chosen and (order.point.text, order.when) not in settled

    orders = divided({scene: points for scene, points in passed.items() if points}, wanted)
    runs = {scene: deque(groups(mine, alone=bool(options.point))) for scene, mine in orders.items()}
    for scene, mine in orders.items():
        print(f"{scene}: {len(mine)} orders in {len(runs[scene])} runs", flush=True)
    waiting = deque(scene for scene in runs if runs[scene])
    while waiting and time.monotonic() < end:
        scene = waiting.popleft()
        results, left = campaign.run(scene, runs[scene].popleft())
        runs[scene].extendleft(reversed(left))
        if runs[scene]:
            waiting.append(scene)
        _print(scene, results, left)
        outcomes.update(result.outcome in LAWFUL for result in results)
    open_runs = sum(len(run) for run in runs.values())
    print(f"{outcomes[True]} as they should be, {outcomes[False]} not, {open_runs} runs left; see {options.record}")
    return int(bool(outcomes[False]))


def _passed(campaign: Campaign, scenes: Iterable[str], end: float) -> dict[str, list[Point] | None]:
    """The points of each scene; None: it fails though nobody is ended."""
    points: dict[str, list[Point] | None] = {}
    for scene in scenes:
        if time.monotonic() > end:
            break
        try:
            points[scene] = campaign.points(scene)
        except (AssertionError, CommandError) as error:
            print(f"{scene}: fails though nobody is ended: {error}", flush=True)
            points[scene] = None
    return points


def _print(scene: str, results: list[Result], left: list[list[Order]]) -> None:
    for result in results:
        print(
            f"  {result.when} {result.point}: {result.outcome} ({result.seconds:.0f} s, {result.beside} beside)",
            flush=True,
        )
    if left:
        print(f"  again in {scene}: {', '.join(str(len(run)) for run in left)}", flush=True)


@contextmanager
def _harness(name: str, keep: bool) -> Iterator[tuple[Harness, Recorder]]:
    stack = embedded(name)
    try:
        operator = build_images(cache_root())["operator"]
        image: Image = with_faultpoints(cache_root(), operator)
        cluster.load_images(cluster.running(name), [Path(image.archive)])
        harness = Harness(replace(stack, operator_image=image.image))
        restart_within(harness.layout, "1s")
        prepare_namespace(harness.kubectl, NAMESPACE, "privileged")
        mount_everywhere(harness)
        recorder = Recorder(harness.in_node(NODE_DIRECTORY))
        recorder.clear()
        install(harness.stack)
        harness.begin()
        yield harness, recorder
    finally:
        if not keep:
            cluster.down(name)


if __name__ == "__main__":
    sys.exit(main())
