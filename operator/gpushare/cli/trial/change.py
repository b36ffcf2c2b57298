"""The change of the trial's GpuShare that follows from its figures. Pure."""

from collections.abc import Sequence
from typing import Any

from gpushare.api.gpushare import GpuShare
from gpushare.recommend.advice import client_patch
from gpushare.recommend.memory import memory_patch
from gpushare.trial.rows import TrialRow
from gpushare.trial.verdict import TrialVerdict, memory_for


def change_of(verdict: TrialVerdict, rows: Sequence[TrialRow], share: GpuShare) -> dict[str, Any] | None:
    """A merge patch of the share: as many clients as pay, each with the most memory that a copy was seen with and a
    little more. None: there is nothing to change.

    Memory is never raised: every copy worked with what it was granted. Threads stay as they were measured.
    """
    best = verdict.best
    if best is None:
        return None
    clients: dict[str, Any] = {}
    if best.case.total != share.clients.per_gpu:
        clients["perGpu"] = best.case.total
    seen = [row.memory_mib for row in rows if row.memory_mib is not None and row.case.total <= best.case.total]
    if seen and (wanted := memory_for(max(seen))) < share.memory_default_mib:
        clients["memory"] = memory_patch(share, wanted)
    return client_patch(**clients) if clients else None
