"""How long a share takes to become Ready, by GPUs and CPU limit.

    python -m measurements.scale.operator.share_ready --out measurements/results/scale/share-ready.json

A cluster of its own with simulated GPUs on one node. Each round makes a share over all of them, and measures from the
request that creates it to the first reading of Ready (one each 0.2 s). A simulated MPS daemon takes more CPU for its
commands than NVIDIA's, which is a native program, and none to initialize a GPU.
"""

import argparse
import json
import statistics
from collections.abc import Sequence

from localcluster.cluster import cluster
from localcluster.stack import embedded, install
from measurements.scale import results
from tests.cluster.harness import Harness, wait_until
from tests.cluster.time_to_ready import seconds_to_ready, wait_for_free_gpus

CLUSTER = "ready"


def measure(harness: Harness, gpus: int, limit: str, rounds: int) -> dict[str, object]:
    install(harness.stack, f"--set=simulation.gpus={gpus}", f"--set-string=mps.resources.cpuLimit={limit}")
    wait_until("the agent reports the GPUs", lambda: len(harness.gpu_node()["status"]["gpus"]) == gpus)
    times = []
    for _ in range(rounds):
        wait_for_free_gpus(harness)
        times.append(round(seconds_to_ready(harness, gpus), 1))
    figures: dict[str, object] = {"gpus": gpus, "cpuLimit": limit or None, "seconds": times}
    return figures | {"median": statistics.median(times), "load": results.load()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, action="append", help="default: 1 and 8")
    parser.add_argument("--limit", action="append", help="of an MPS pod's CPU, '' is none; default: 250m and none")
    parser.add_argument("--rounds", type=int, default=3)
    results.add_out(parser)
    args = parser.parse_args(argv)
    measured = []
    try:
        harness = Harness(embedded(CLUSTER))
        for gpus in args.gpus or [1, 8]:
            for limit in args.limit or ["250m", ""]:
                measured.append(measure(harness, gpus, limit, args.rounds))
                print(json.dumps(measured[-1]), flush=True)
    finally:
        cluster.down(CLUSTER)
    what = (
        "python -m measurements.scale.operator.share_ready; seconds to Ready with simulated GPUs, see its documentation"
    )
    results.write({"what": what, "environment": results.machine(), "measured": measured}, args.out)


if __name__ == "__main__":
    main()
