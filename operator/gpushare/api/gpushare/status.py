"""What the operator reports of a GpuShare."""

from pydantic import Field

from gpushare.api.base import ApiModel
from gpushare.api.meta import Condition

MOST_UNPLACED = 8
"""Claims that a status tells."""


class GpuCounts(ApiModel):
    matching: int = Field(default=0, ge=0, description="GPUs that the selectors match.")
    assigned: int = Field(default=0, ge=0, description="GPUs that belong to this share.")
    ready: int = Field(default=0, ge=0, description="Assigned GPUs whose daemon is verified.")
    draining: int = Field(default=0, ge=0, description="Assigned GPUs that leave this share once idle.")


class SlotCounts(ApiModel):
    total: int = Field(default=0, ge=0, description="Slots on ready GPUs.")
    used: int = Field(default=0, ge=0, description="Slots held by containers.")


class PlaceCounts(ApiModel):
    """Of a share whose GPUs have more slots than places (clients.queue)."""

    total: int = Field(default=0, ge=0, description="Places on ready GPUs.")
    used: int = Field(default=0, ge=0, description="Containers that have a place.")
    waiting: int = Field(default=0, ge=0, description="Containers whose processes wait for a place.")


class UnavailableGpus(ApiModel):
    """GPUs that cannot be taken, grouped by reason so that the list stays short; of other products if none matches."""

    reason: str = Field(max_length=64)
    count: int = Field(ge=1)
    message: str = Field(max_length=1024, description="The reason for one of them, by name.")


class PendingClaim(ApiModel):
    claim: str = Field(max_length=317, description="The ResourceClaim, as namespace/name.")
    message: str = Field(
        max_length=512, description="Which capacity is missing, how much of it, and which GPU comes closest."
    )


class ClaimCounts(ApiModel):
    allocated: int = Field(default=0, ge=0, description="ResourceClaims that have a part of a GPU.")
    pending: int = Field(default=0, ge=0, description="ResourceClaims that have none yet.")
    threads: str = Field(default="", max_length=64, description="Percent granted and offered, such as 230/800%.")
    memory: str = Field(default="", max_length=64, description="Memory granted and offered, such as 96Gi/1112Gi.")
    unplaced: list[PendingClaim] = Field(
        default_factory=list, max_length=MOST_UNPLACED, description="Some of the pending claims that fit on no GPU now."
    )


class GpuShareStatus(ApiModel):
    observed_generation: int = Field(default=0, ge=0, description="The spec's generation that this status is about.")
    gpus: GpuCounts = Field(default_factory=GpuCounts)
    slots: SlotCounts = Field(default_factory=SlotCounts)
    places: PlaceCounts | None = Field(default=None, description="Of a share with clients.queue only.")
    nodes: int = Field(default=0, ge=0, description="Nodes with a GPU of this share.")
    summary: str = Field(default="", max_length=64, description="Ready and assigned GPUs, such as 2/2.")
    threads: str = Field(default="", max_length=64, description="Default and maximal percent, such as 25/50%.")
    memory: str = Field(default="", max_length=64, description="Default and maximal memory, such as 16Gi/16Gi.")
    gpu_memory_mib: int = Field(
        default=0,
        ge=0,
        description="Memory, in MiB, of the largest GPU of this share: what fractions count from.",
    )
    pre_stop: bool = Field(
        default=False,
        description="Every node with a GPU of this share mounts gpushare's program for preStop hooks: containers with "
        "a probe get it as theirs, in the place of a sleep.",
    )
    claims: ClaimCounts | None = Field(default=None, description="Delivery ResourceClaim only.")
    unavailable: list[UnavailableGpus] = Field(default_factory=list, max_length=32)
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
