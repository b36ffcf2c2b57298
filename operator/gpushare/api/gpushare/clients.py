"""`spec.clients`: into how many slots each GPU is divided, and what a client is granted."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from gpushare.api.base import ApiModel, checked, rule
from gpushare.api.gpushare.classes import MOST_PROTECTED, Classes
from gpushare.api.gpushare.memory import MemoryGrant
from gpushare.api.gpushare.queue import Queue

CONTEXT_RESERVE_MIB = 512
"""MiB of a GPU that no client can have: the MPS server's context (66 MiB measured) and the driver's own."""
HIGHEST_CLIENT_CEILING = 60
"""MPS contexts on one GPU that any driver takes (60 from driver 590 on, 48 before); the node knows its own."""
MOST_SLOTS = 240
"""Slots of one GPU, those of its queue included: so many pods find room in what the node's parts tell each other."""

Percent = Annotated[int, Field(ge=1, le=100)]


class Placement(StrEnum):
    SPREAD = "Spread"
    PACK = "Pack"


class Threads(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=checked(
            rule(
                "self.default <= self.max",
                "threads.default must not exceed threads.max",
                says="'default %d exceeds max %d: raise threads.max or lower threads.default'"
                ".format([self.default, self.max])",
                field=".default",
            )
        )
    )

    default: Percent = Field(
        default=100,
        description="Percent of the GPU's SMs that each process of a client gets unless its pod asks otherwise.",
    )
    max: Percent = Field(
        default=100,
        description="Ceiling, in percent of the GPU's SMs, for the annotation gpushare.dev/threads. It is the "
        "daemon's own limit: no client can exceed it.",
    )
    overcommit: Annotated[int, Field(ge=1, le=HIGHEST_CLIENT_CEILING)] = Field(
        default=1,
        description="Delivery ResourceClaim only: how often each GPU's 100 percent may be claimed. 1: the claims of a "
        "GPU add up to at most 100 percent; 2: to 200, so that busy clients slow each other down. With DevicePlugin "
        "the number of slots is the only bound.",
    )


class Clients(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=checked(
            rule(
                f"self.perGpu * self.processes <= {HIGHEST_CLIENT_CEILING}",
                f"perGpu × processes must not exceed {HIGHEST_CLIENT_CEILING}",
                says=f"'perGpu %d × processes %d is more than the {HIGHEST_CLIENT_CEILING} MPS contexts that any "
                "driver takes on one GPU (48 before driver 590): lower one of them'"
                ".format([self.perGpu, self.processes])",
                field=".perGpu",
            ),
            rule(
                "!has(self.classes) || !('Protected' in self.classes.allowed) || "
                f"self.classes.protected.perGpu * self.processes <= {MOST_PROTECTED}",
                f"classes.protected.perGpu × processes must not exceed {MOST_PROTECTED}",
                says=f"'protected.perGpu %d × processes %d is more than the {MOST_PROTECTED} processes that best "
                "effort can give way to: lower one of them, or take Protected out of classes.allowed'"
                ".format([self.classes.protected.perGpu, self.processes])",
                field=".classes.protected.perGpu",
            ),
            rule(
                f"!has(self.queue) || self.perGpu + self.queue.slots <= {MOST_SLOTS}",
                f"perGpu + queue.slots must not exceed {MOST_SLOTS}",
                says=f"'perGpu %d + queue.slots %d is more than {MOST_SLOTS} slots of a GPU: lower queue.slots'"
                ".format([self.perGpu, self.queue.slots])",
                field=".queue.slots",
            ),
        )
    )

    per_gpu: Annotated[int, Field(ge=1, le=HIGHEST_CLIENT_CEILING)] = Field(
        description="How many containers share each GPU at the same time. Without `queue` that is its slots."
    )
    processes: Annotated[int, Field(ge=1, le=HIGHEST_CLIENT_CEILING)] = Field(
        default=1,
        description="MPS contexts (processes using CUDA) per client. The client's memory is divided by it. "
        "perGpu × processes is bounded by the driver: 48, or 60 from driver 590.",
    )
    threads: Threads = Field(default_factory=Threads, description="Compute: percent of the GPU's SMs.")
    memory: MemoryGrant = Field(description="GPU memory of each client.")
    classes: Classes | None = Field(
        default=None,
        description="Lets clients be Protected, Normal or BestEffort: best effort gives way to protected clients of "
        "its GPU, by a library in front of the driver's. Default: no client has a class, and no library is mounted. "
        "Containers that start later have it. Needs CDI on the node.",
    )
    queue: Queue | None = Field(
        default=None,
        description="Delivery DevicePlugin only: more slots of a GPU than places. A pod starts at once, and its first "
        "CUDA context waits until one of the GPU's perGpu places is free. Default: each slot is a place.",
    )
    placement: Placement | None = Field(
        default=None,
        description="Which of a node's GPUs a new client gets: Spread, the one with most free slots, so that few "
        "share a GPU while others are free; Pack, the one with fewest, so that GPUs without any client stay free. "
        "Default: Spread with delivery DevicePlugin. With ResourceClaim the scheduler takes the first GPU that fits, "
        "which is Pack.",
    )


ONE_CONTAINER = Clients(per_gpu=1, memory=MemoryGrant(default="512Mi"))
"""A whole GPU in sums over slots: one container has it. Nothing else of it means anything."""
