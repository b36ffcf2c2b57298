"""How long the first share after an install takes to become Ready, and where the time goes.

`python -m measurements.scale.operator.first_share [--rounds N] [--out FILE]`: a cluster of its own with simulated GPUs.
Each round installs the chart anew, makes the README's share, waits until it is Ready, deletes it, and makes it once
more: the second has all that the first one had to wait for. Stages are seen in the files by which agent, supervisor and
broker hand a GPU to each other (docs/architecture.md), and in the requests to the API server, by its audit log.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from localcluster.cluster import cluster
from localcluster.paths import REPOSITORY
from localcluster.stack import NAMESPACE, RELEASE, embedded, install
from measurements.scale import results
from tests.cluster.harness import NODE, Harness, Share, wait_until

CLUSTER = "first"
EXAMPLE = REPOSITORY / "examples" / "inference.yaml"
SHARE = "inference"
LOOK_SECONDS = 0.03
MPS_PODS = "--selector=app.kubernetes.io/component=mps"


def timeline(harness: Harness, began: float) -> list[tuple[float, str]]:
    """(seconds since `began`, what) of every write that has to do with the share, in order."""
    writes = []
    for line in harness.audit():
        at = datetime.fromisoformat(line["requestReceivedTimestamp"].replace("Z", "+00:00")).timestamp() - began
        asked = line.get("objectRef") or {}
        if at < -0.5 or line["verb"] not in ("create", "patch", "update", "delete"):
            continue
        if asked.get("resource") in ("leases", "events", "tokenreviews", "subjectaccessreviews", "endpointslices"):
            continue
        what = f"{line['verb']} {asked.get('resource')}/{asked.get('subresource', '')} {asked.get('name', '')}"
        writes.append((round(at, 2), f"{what} by {line['user']['username'].rpartition(':')[2]}"))
    return sorted(writes)


class Stages:
    """Looks at the GPU directories until it is left, and notes when each fact was first true of every GPU."""

    def __init__(self, harness: Harness) -> None:
        self._root, self._cdi = harness.in_node("/run/gpushare"), harness.in_node("/var/run/cdi")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._began = time.time()
        self.seen: dict[str, float] = {}

    def __enter__(self) -> "Stages":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=10)

    def _look(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            facts = [self._facts(gpu) for gpu in self._root.glob("GPU-*")]
            for fact in set.intersection(*facts) if facts else ():
                self.seen.setdefault(fact, round(time.time() - self._began, 2))

    def _facts(self, gpu: Path) -> set[str]:
        state = _read(gpu / "state.json")
        facts = {f"supervisor reports {state['reason']}"} if "reason" in state else set()
        facts |= {"MPS daemon listens"} if (gpu / "pipe" / "control").exists() else set()
        facts |= {"agent has taken the GPU"} if (gpu / "daemon.json").exists() else set()
        facts |= {"broker reports that it listens"} if _read(gpu / "broker" / "broker.json").get("listening") else set()
        facts |= {"gate is open"} if (self._cdi / f"gpushare.dev-gpu-{gpu.name}.json").exists() else set()
        return facts


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def seconds_to_ready(harness: Harness) -> tuple[float, dict[str, float], list[tuple[float, str]]]:
    """(seconds to Ready, seconds to each stage, writes to the API server), all since the share was applied."""
    share, began = Share(harness, SHARE), time.time()
    with Stages(harness) as stages:
        harness.kubectl("apply", "-f", str(EXAMPLE))
        share.wait_ready()
        took = time.time() - began
    return round(took, 2), stages.seen, timeline(harness, began)


def a_round(harness: Harness, verbose: bool) -> dict[str, Any]:
    harness.stack.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--ignore-not-found")
    began = time.time()
    install(harness.stack)
    figures: dict[str, Any] = {"install": round(time.time() - began, 1)}
    for which in ("first", "second"):
        seconds, stages, requests = seconds_to_ready(harness)
        figures[which], figures[f"{which}Stages"] = seconds, stages
        if verbose:
            print(f"--- {which}: {seconds} s", *(f"{at:7.2f} {what}" for at, what in requests), sep="\n", flush=True)
            print(harness.system("logs", MPS_PODS, "--all-containers", "--prefix", "--timestamps"), flush=True)
        Share(harness, SHARE).delete()
        wait_until("the MPS pod has ended", lambda: not harness.system.items("pods", MPS_PODS))
    return figures | {"load": results.load()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cluster", default=CLUSTER, help="its name")
    parser.add_argument("--verbose", action="store_true", help="print every write of each share")
    results.add_out(parser)
    args = parser.parse_args(argv)
    rounds = []
    try:
        harness = Harness(embedded(args.cluster))
        harness.kubectl("label", "node", NODE, "pool=gpu", "--overwrite")
        for _ in range(args.rounds):
            rounds.append(a_round(harness, args.verbose))
            print(json.dumps(rounds[-1]), flush=True)
    finally:
        cluster.down(args.cluster)
    medians = {which: statistics.median(run[which] for run in rounds) for which in ("install", "first", "second")}
    what = "python -m measurements.scale.operator.first_share; seconds, see its documentation"
    results.write({"what": what, "environment": results.machine(), "median": medians, "rounds": rounds}, args.out)


if __name__ == "__main__":
    main()
