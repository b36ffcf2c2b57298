"""Paths on the machine, all below one directory. `down` removes it, except for the parts."""

import os
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.paths import REPOSITORY, cache_root
from localcluster.programs.build import Binaries, binaries

WORK = Path(os.environ.get("GPUSHARE_STACK", "/tmp/gpushare-stack"))
CLUSTER = WORK.name
"""Another directory is another cluster: two of them can share a machine, each with a GPU of its own."""
PARTS = WORK / "parts"
CACHE = WORK / "cache"
"""The programs, in directories named as in the build cache that they were packed from."""
STATE = WORK / "state"
OPERATOR_ARCHIVE = CACHE / "operator.tar"
OPERATOR_NAME = CACHE / "operator.name"
WORKLOAD_ARCHIVE = WORK / "workload.tar"
RESULTS = REPOSITORY / "measurements" / "results" / "h200"
SIMULATED_RESULTS = REPOSITORY / "build" / "h200-simulated"
"""Figures of a simulation are no results: they stay out of the repository."""


def use_unpacked() -> Binaries:
    """Makes this process and its children use the unpacked files. Raises LocalClusterError if some are missing."""
    os.environ["GPUSHARE_CACHE"], os.environ["GPUSHARE_STATE"] = str(CACHE), str(STATE)
    programs = binaries(cache_root())
    wanted = (programs.kube, programs.runtime, programs.helm, programs.pause, OPERATOR_ARCHIVE)
    if missing := [path.name for path in wanted if not path.exists()]:
        raise LocalClusterError(
            f"{CACHE} lacks {', '.join(missing)}: `unpack` every part that `pack` made from this very work tree"
        )
    # The tools that the machine lacks lie beside the runtime's programs, first on every component's PATH as well.
    first = f"{programs.runtime}:{programs.kube}:{programs.helm}:"
    if not os.environ["PATH"].startswith(first):
        os.environ["PATH"] = first + os.environ["PATH"]
    return programs
