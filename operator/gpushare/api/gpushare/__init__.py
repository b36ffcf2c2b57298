"""GpuShare: which GPUs are shared, into how many slots, and what each client is granted; or which are given whole.

A module for each part: `spec` and its `clients`, `classes`, `memory`, `queue`, `sizes` and `whole_gpus`; `status`;
`share`, the object.
"""

from gpushare.api.gpushare.classes import Classes
from gpushare.api.gpushare.clients import CONTEXT_RESERVE_MIB, HIGHEST_CLIENT_CEILING, Placement
from gpushare.api.gpushare.memory import MOST_OVERCOMMIT_PERCENT, Enforcement
from gpushare.api.gpushare.queue import Queue
from gpushare.api.gpushare.share import GpuShare
from gpushare.api.gpushare.sizes import Size
from gpushare.api.gpushare.spec import Delivery
from gpushare.api.gpushare.status import (
    MOST_UNPLACED,
    ClaimCounts,
    GpuCounts,
    GpuShareStatus,
    PendingClaim,
    PlaceCounts,
    SlotCounts,
    UnavailableGpus,
)

__all__ = [
    "GpuShare",
    "Classes",
    "Delivery",
    "Enforcement",
    "Placement",
    "Queue",
    "Size",
    "GpuShareStatus",
    "ClaimCounts",
    "GpuCounts",
    "PendingClaim",
    "PlaceCounts",
    "SlotCounts",
    "UnavailableGpus",
    "CONTEXT_RESERVE_MIB",
    "HIGHEST_CLIENT_CEILING",
    "MOST_OVERCOMMIT_PERCENT",
    "MOST_UNPLACED",
]
