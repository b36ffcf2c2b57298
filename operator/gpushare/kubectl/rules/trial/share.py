"""The GpuShare that follows from what was measured. Pure."""

import re
from collections.abc import Sequence
from typing import Any

from gpushare.api import names
from gpushare.api.quantity import LEAST_MEMORY_MIB
from gpushare.kubectl.rules.trial.cases import TrialMode
from gpushare.kubectl.rules.trial.rows import TrialRow
from gpushare.kubectl.rules.trial.verdict import TrialVerdict

HEADROOM = 1.1
"""The recommended memory, as a multiple of the highest that was seen."""
MEMORY_STEP_MIB = 256
LEAST_UNCAPPED_MIB = 768
"""Granted to a client with all threads, whose CUDA context takes 520 MiB: admission refuses less than that."""
RESERVE_MIB = 1024
"""Part of the GPU's memory that is left for MPS itself."""


def memory_for(most_mib: int) -> int:
    """MiB to grant a client that was seen with `most_mib` at most: a tenth more, in whole steps."""
    steps = -(-int(most_mib * HEADROOM) // MEMORY_STEP_MIB)
    return max(LEAST_MEMORY_MIB, steps * MEMORY_STEP_MIB)


def check_share_name(option: str, name: str) -> None:
    """Raises ValueError naming the option for a name that no GpuShare can have."""
    if not re.match(names.SHARE_NAME_PATTERN, name):
        raise ValueError(
            f"{option} {name!r}: a GpuShare's name begins with a letter and has at most 40 of a-z, 0-9 and -"
        )


def share_of(
    verdict: TrialVerdict,
    rows: Sequence[TrialRow],
    name: str,
    product: str,
    gpu_mib: int | None,
    cap: float | None = None,
) -> dict[str, Any] | None:
    """The GpuShare to apply; None where the verdict recommends none, or the memory of the copies is not known.

    Each client gets the most memory that a copy was seen with and a little more, as far as the GPU has it. `cap`:
    percent of the SMs of each copy in mode CAPPED, if the GPU was not divided equally.
    """
    best = verdict.best
    if best is None or best.memory_mib is None or gpu_mib is None:
        return None
    usable = gpu_mib - RESERVE_MIB
    alone = [row.memory_mib for row in rows if row.case.mode is TrialMode.ALONE and row.memory_mib is not None]
    wanted = memory_for(max(best.memory_mib, *alone, 0))
    capped = best.case.mode is TrialMode.CAPPED
    least = LEAST_MEMORY_MIB if capped else LEAST_UNCAPPED_MIB
    memory = max(least, min(wanted, usable // best.case.total))
    clients = min(best.case.total, usable // memory)
    if clients < 1:
        return None
    threads = max(1, int(cap or 100 / best.case.total)) if capped else 100
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GpuShare",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"products": [product]},
            "clients": {
                "perGpu": clients,
                "threads": {"default": threads, "max": threads},
                "memory": {"default": f"{memory}Mi"},
            },
        },
    }
