"""GPU memory of a share's clients: what is reserved for each, and how far it may borrow above that."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from gpushare.api.base import ApiModel, checked, rule
from gpushare.api.quantity import MEMORY_PATTERN, Duration

_BYTES = "quantity(self).asApproximateFloat()"
Memory = Annotated[
    str,
    Field(
        max_length=27,
        json_schema_extra=checked(
            rule(
                f"self.matches(r'{MEMORY_PATTERN}') && {_BYTES} == double(int({_BYTES}))",
                "must be a memory quantity of whole bytes, such as 16Gi or 1536Mi",
                says="'\"' + self + '\" is not a memory quantity of whole bytes: write it like 16Gi or 1536Mi'",
            )
        ),
    ),
]


MOST_OVERCOMMIT_PERCENT = 1000


class Enforcement(StrEnum):
    AUDIT = "Audit"
    TERMINATE = "Terminate"


class ReportedTotal(StrEnum):
    DEVICE = "Device"
    GRANT = "Grant"


def _above(low: str, high: str) -> str:
    """CEL: both are there and can be read, and the first is the larger one."""
    readable = f"has(self.{low}) && has(self.{high}) && isQuantity(self.{low}) && isQuantity(self.{high})"
    return f"{readable} && quantity(self.{low}).compareTo(quantity(self.{high})) > 0"


class MemoryLimits(ApiModel):
    """Limits above what is reserved: a client borrows what others leave free."""

    model_config = ConfigDict(
        json_schema_extra=checked(
            rule(
                f"!({_above('default', 'max')})",
                "limits.default must not exceed limits.max",
                says="'limits.default ' + self.default + ' exceeds limits.max ' + self.max + "
                "': raise limits.max or lower limits.default'",
                field=".default",
            ),
        )
    )

    max: Memory = Field(
        description="The most GPU memory that a client may use, what is reserved for it included. Ceiling for the "
        "annotation gpushare.dev/memory-limit, for a size's memoryLimit, and for memory and memoryBurst of a claim "
        "together. It is the daemon's own limit: no client can exceed it."
    )
    default: Memory | None = Field(
        default=None,
        description="Delivery DevicePlugin only: the limit of a client whose pod asks for none. Default: what is "
        "reserved for the client, so that only those borrow that ask for it.",
    )
    overcommit_percent: Annotated[int, Field(ge=100, le=MOST_OVERCOMMIT_PERCENT)] = Field(
        default=100,
        description="What the limits of a GPU's clients together may be, in percent of its memory. 100: the GPU is "
        "never short. Above: clients may borrow what others have reserved, and the GPU may be short of it when those "
        "want it back.",
    )
    when_short: Enforcement = Field(
        default=Enforcement.AUDIT,
        description="What happens when a GPU has less free memory than its clients still have reserved: Audit reports "
        "it (event, metric, condition), Terminate ends borrowers through the MPS daemon, one after the other: the pod "
        "of lowest priority first, of those the one that borrows most. Reservations are never touched.",
    )
    grace_period: Duration = Field(
        default="30s",
        description="With whenShort Terminate: how long a borrower has, from the event that gives it notice, to give "
        "memory back or to end by itself.",
    )


class MemoryGrant(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=checked(
            rule(
                "!isQuantity(self.default) || quantity(self.default).compareTo(quantity('512Mi')) >= 0",
                "memory.default must be at least 512Mi",
                says="'default ' + self.default + ' is below 512Mi: the CUDA context alone needs up to 520 MiB of it'",
                field=".default",
            ),
            rule(
                "!has(self.max) || !isQuantity(self.default) || !isQuantity(self.max) || "
                "quantity(self.default).compareTo(quantity(self.max)) <= 0",
                "memory.default must not exceed memory.max",
                says="'default ' + self.default + ' exceeds max ' + self.max + "
                "': raise memory.max or lower memory.default'",
                field=".default",
            ),
            rule(
                "!has(self.limits) || !self.overcommit",
                "memory.limits needs memory.overcommit false: where more is granted than the GPU has, nothing is "
                "reserved that could be given back",
                field=".limits",
            ),
            rule(
                f"!has(self.limits) || !({_above('default', 'limits.max')} || {_above('max', 'limits.max')})",
                "limits.max must be at least memory.default and memory.max, which are reserved",
                field=".limits",
            ),
            rule(
                f"!has(self.limits) || !({_above('default', 'limits.default')})",
                "limits.default must be at least memory.default, which is reserved",
                field=".limits",
            ),
        )
    )

    default: Memory = Field(
        description="GPU memory reserved for each client (container) unless its pod asks otherwise, such as 16Gi; "
        "at least 512Mi. The context's own need, 60 to 520 MiB by threads, counts against it."
    )
    max: Memory | None = Field(
        default=None,
        description="The most memory that one client may ask for. Default: the same as `default`. With DevicePlugin "
        "more than `default` needs `overcommit`, with ResourceClaim it does not.",
    )
    overcommit: bool = Field(
        default=False,
        description="Allow the clients of a GPU more memory together than it has: with DevicePlugin perGpu × "
        "memory.default and annotations above `default`, with ResourceClaim claims that perGpu alone bounds. Clients "
        "may then fail to allocate although they are within their grant.",
    )
    limits: MemoryLimits | None = Field(
        default=None,
        description="How far clients may borrow above what is reserved for them. Default: not at all; what is reserved "
        "is also the limit.",
    )
    reported_total: ReportedTotal = Field(
        default=ReportedTotal.DEVICE,
        description="What CUDA and NVML report to a client as the GPU's memory: Device, all of it; Grant, what is "
        "reserved for each of its processes, for programs that plan by a fraction of the total, such as vLLM and JAX. "
        "It is shown by libraries in front of the driver's; what is enforced is the same. Containers that start later "
        "have it. Needs CDI on the node.",
    )
