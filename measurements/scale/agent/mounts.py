"""What a process with as many mounts as the kernel allows costs whoever reads its mountinfo.

    python -m measurements.scale.agent.mounts --before 94a6433a --out measurements/results/scale/agent-mounts.json

Starts the program of the cluster's test (`tests/cluster/clients/own_mounts.py`), which makes 2^16 mounts, or the bound
of fs.mount-max, in a mount namespace of its own. Then one process of each tree looks, by the agent's own code, whether
the container of that program was started with the mount of its slot: one search as the agent makes it, without the
agent around it. `/proc` is the machine's, but for the cgroup, which names a container.

Figures: MiB resident at most, and seconds of user and system time, of the search alone; the base is the same process
before it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localcluster.paths import REPOSITORY
from measurements.scale import results
from measurements.scale.trees import trees

DOUBLINGS = 16
SECONDS = 900
POD, CONTAINER = "0a1b2c3d-1111-2222-3333-444455556666", "ab" * 32
SEARCH = """
import json, resource, sys, time
from pathlib import Path
from gpushare.agent.observe.mounts import MountChecker, SlotContainer
def used():
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_maxrss / 1024, spent.ru_utime + spent.ru_stime
checker = MountChecker(time.monotonic, Path(sys.argv[1]))
base, began = used(), time.monotonic()
found = checker.unmounted([SlotContainer("GPU-0", sys.argv[2])])
peak = used()
print(json.dumps({
    "baseMib": round(base[0], 1),
    "peakMib": round(peak[0], 1),
    "cpuSeconds": round(peak[1] - base[1], 2),
    "seconds": round(time.monotonic() - began, 2),
}))
"""


@contextmanager
def mounts() -> Iterator[tuple[int, int]]:
    """(PID of the program, how many mounts it has)."""
    program = REPOSITORY / "tests" / "cluster" / "clients" / "own_mounts.py"
    with subprocess.Popen([sys.executable, program, str(DOUBLINGS)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(json.loads(process.stdout.readline())["mounts"])
        finally:
            process.kill()


def as_in_a_container(pid: int, proc: Path) -> Path:
    """A /proc that has this process alone, in a container."""
    directory = proc / str(pid)
    directory.mkdir(parents=True)
    (directory / "cgroup").write_text(f"0::/kubepods/pod{POD}/{CONTAINER}\n")
    for name in ("stat", "mountinfo", "ns"):
        (directory / name).symlink_to(f"/proc/{pid}/{name}")
    return proc


def search(tree: Path, proc: Path) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(tree / "operator")}
    command = [sys.executable, "-c", SEARCH, str(proc), CONTAINER]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=SECONDS)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="", help="a commit to compare with")
    results.add_out(parser)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        trees(args.before, Path(scratch)) as compared,
        mounts() as (pid, made),
    ):
        proc = as_in_a_container(pid, Path(scratch) / "proc")
        figures = {subject: search(tree, proc) for subject, tree in compared.items()}
    result = {
        "what": "python -m measurements.scale.agent.mounts; MiB and seconds of one search, see its documentation",
        "environment": {"before": args.before, "mounts": made, "cpu": results.processor(), **results.machine()},
        "search": figures,
    }
    results.write(result, args.out)


if __name__ == "__main__":
    main()
