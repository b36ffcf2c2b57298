"""The GpuShare as a whole, with what follows from its spec: amounts in MiB and seconds, and its clients' limits."""

from typing import Literal

from pydantic import Field

from gpushare.api import names
from gpushare.api.base import ApiModel
from gpushare.api.gpunode import Limits
from gpushare.api.gpushare.classes import Classes
from gpushare.api.gpushare.clients import CONTEXT_RESERVE_MIB, ONE_CONTAINER, Clients
from gpushare.api.gpushare.memory import Enforcement, MemoryLimits, ReportedTotal
from gpushare.api.gpushare.queue import Queue
from gpushare.api.gpushare.spec import Delivery, GpuShareSpec
from gpushare.api.gpushare.status import GpuShareStatus
from gpushare.api.meta import ObjectMeta
from gpushare.api.quantity import parse_duration, parse_mib


class GpuShare(ApiModel):
    """Shares the GPUs it selects between many pods through CUDA MPS, with limits on compute and memory."""

    api_version: Literal["gpushare.dev/v1alpha1"] = "gpushare.dev/v1alpha1"
    kind: Literal["GpuShare"] = "GpuShare"
    metadata: ObjectMeta
    spec: GpuShareSpec = Field(description="Which GPUs are shared, and what each client of them is granted.")
    status: GpuShareStatus = Field(
        default_factory=GpuShareStatus, description="The state of the share; written by the operator."
    )

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def whole(self) -> bool:
        """Whether its GPUs are given whole, without MPS."""
        return self.spec.whole_gpus is not None

    @property
    def resource(self) -> str:
        """The extended resource of its slots, or of its whole GPUs."""
        whole = self.spec.whole_gpus
        return (whole.resource_name if whole is not None else None) or names.slot_resource(self.name)

    @property
    def clients(self) -> Clients:
        """The clients of a share; of whole GPUs one container on each."""
        return self.spec.clients or ONE_CONTAINER

    @property
    def by_claims(self) -> bool:
        """Delivered by ResourceClaim."""
        return self.spec.delivery is Delivery.RESOURCE_CLAIM

    @property
    def terminates(self) -> bool:
        """Tells whether clients above their grant are ended."""
        return self.spec.enforcement is Enforcement.TERMINATE

    @property
    def shows_grant(self) -> bool:
        """Tells whether a client sees what is reserved for it as the GPU's memory."""
        return self.clients.memory.reported_total is ReportedTotal.GRANT

    @property
    def classes(self) -> Classes | None:
        """The classes of its clients; None: they have none."""
        return self.clients.classes

    @property
    def queue(self) -> Queue | None:
        """The queue for its places; None: each slot of its GPUs is a place."""
        return self.clients.queue

    @property
    def counts_launches(self) -> bool:
        """Tells whether launches pass a library of ours: its clients have a class, or wait for places."""
        return self.classes is not None or self.queue is not None

    @property
    def slots_per_gpu(self) -> int:
        """Containers that may hold a slot of a GPU: one for each place, and those of the queue."""
        return self.clients.per_gpu + (self.queue.slots if self.queue is not None else 0)

    @property
    def may_starve(self) -> bool:
        """Whether one client can keep all others of its GPU waiting: each may have all SMs, and none gives way."""
        several = self.clients.per_gpu > 1 and (not self.by_claims or self.clients.threads.overcommit > 1)
        return several and self.clients.threads.default == 100 and self.classes is None

    @property
    def memory_default_mib(self) -> int:
        return parse_mib(self.clients.memory.default)

    @property
    def memory_max_mib(self) -> int:
        memory = self.clients.memory
        return parse_mib(memory.max or memory.default)

    @property
    def limits_memory(self) -> MemoryLimits | None:
        """How far its clients may borrow; None: not at all."""
        return self.clients.memory.limits

    @property
    def memory_limit_max_mib(self) -> int:
        """The most that a client may use, borrowed memory included."""
        limits = self.clients.memory.limits
        return self.memory_max_mib if limits is None else max(self.memory_max_mib, parse_mib(limits.max))

    @property
    def fault_timeout_seconds(self) -> int:
        return parse_duration(self.spec.fault_timeout)

    @property
    def max_wait_seconds(self) -> int | None:
        return None if self.spec.max_wait is None else parse_duration(self.spec.max_wait)

    @property
    def place_wait_seconds(self) -> int:
        """How long a process waits for a place; 0 without a queue."""
        return 0 if self.queue is None else parse_duration(self.queue.max_wait)

    @property
    def idle_after_seconds(self) -> int | None:
        """After how long without a launch a client may lose its place; None: never."""
        after = self.queue.idle_after if self.queue is not None else None
        return None if after is None else parse_duration(after)

    def read_amounts(self) -> None:
        """ValueError: an amount or a duration cannot be read. The schema's own rules are made of floats."""
        memory, limits = self.clients.memory, self.clients.memory.limits
        limited = (limits.max, limits.default) if limits is not None else ()
        sizes = (amount for size in self.spec.sizes for amount in (size.memory, size.memory_limit))
        for amount in (memory.default, memory.max, *limited, *sizes):
            parse_mib(amount or memory.default)
        _ = self.fault_timeout_seconds, self.max_wait_seconds, self.place_wait_seconds, self.idle_after_seconds

    @property
    def contexts_per_gpu(self) -> int:
        return self.clients.per_gpu * self.clients.processes

    @property
    def process_limits(self) -> Limits:
        """The limits that each MPS daemon of the share enforces on each client process."""
        clients = self.clients
        return Limits(
            threads=clients.threads.max,
            memory_mib=max(1, self.memory_limit_max_mib // clients.processes),
        )

    def claimable_mib(self, gpu_mib: int) -> int:
        """MiB of a GPU that all its claims together may be granted; with over-commit the clients' number bounds them.

        `gpu_mib`: the GPU's memory.
        """
        usable = max(0, gpu_mib - CONTEXT_RESERVE_MIB)
        clients = self.clients
        return max(usable, clients.per_gpu * self.memory_max_mib) if clients.memory.overcommit else usable

    def claimable_burst_mib(self, gpu_mib: int) -> int:
        """MiB that all claims of a GPU together may borrow: with what they reserve it is overcommitPercent of it."""
        limits = self.limits_memory
        return 0 if limits is None else (limits.overcommit_percent - 100) * self.claimable_mib(gpu_mib) // 100

    @property
    def full_gpu_limits_mib(self) -> int:
        """MiB that the clients of a full GPU and MPS itself may use together; of a share delivered by slots."""
        return self.clients.per_gpu * self.memory_limit_max_mib + CONTEXT_RESERVE_MIB
