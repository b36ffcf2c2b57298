"""GpuShare: which GPUs are shared, into how many slots, and what each client is granted; or which are given whole."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from gpushare.api import names
from gpushare.api.base import ApiModel, checked, rule
from gpushare.api.duration import Duration, parse_duration
from gpushare.api.gpunode import Limits
from gpushare.api.memory import Enforcement, Memory, MemoryGrant, MemoryLimits, ReportedTotal
from gpushare.api.meta import Condition, LabelSelector, ObjectMeta
from gpushare.api.quantity import format_mib, parse_mib

CONTEXT_RESERVE_MIB = 512
"""MiB of a GPU that no client can have: the MPS server's context (66 MiB measured) and the driver's own."""
HIGHEST_CLIENT_CEILING = 60
"""MPS contexts on one GPU that any driver takes (60 from driver 590 on, 48 before); the node knows its own."""

Percent = Annotated[int, Field(ge=1, le=100)]


class Delivery(StrEnum):
    DEVICE_PLUGIN = "DevicePlugin"
    RESOURCE_CLAIM = "ResourceClaim"


class Priority(StrEnum):
    NORMAL = "Normal"
    BELOW_NORMAL = "BelowNormal"


class Placement(StrEnum):
    SPREAD = "Spread"
    PACK = "Pack"


class GpuSelection(ApiModel):
    products: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(
        default_factory=list,
        max_length=16,
        description="NVML product names, such as `NVIDIA H200`, that this share takes. Empty: every product.",
    )
    per_node: Annotated[int, Field(ge=1, le=16)] | None = Field(
        default=None,
        description="GPUs taken on each node, at most. Default: all that match. Only for nodes that "
        "NVIDIA's device plugin does not serve.",
    )


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
            )
        )
    )

    per_gpu: Annotated[int, Field(ge=1, le=HIGHEST_CLIENT_CEILING)] = Field(
        description="Slots on each GPU: how many containers share it at the same time."
    )
    processes: Annotated[int, Field(ge=1, le=HIGHEST_CLIENT_CEILING)] = Field(
        default=1,
        description="MPS contexts (processes using CUDA) per client. The client's memory is divided by it. "
        "perGpu × processes is bounded by the driver: 48, or 60 from driver 590.",
    )
    threads: Threads = Field(default_factory=Threads, description="Compute: percent of the GPU's SMs.")
    memory: MemoryGrant = Field(description="GPU memory of each client.")
    priority: Priority = Field(default=Priority.NORMAL, description="MPS client priority: Normal or BelowNormal.")
    placement: Placement | None = Field(
        default=None,
        description="Which of a node's GPUs a new client gets: Spread, the one with most free slots, so that few "
        "share a GPU while others are free; Pack, the one with fewest, so that GPUs without any client stay free. "
        "Default: Spread with delivery DevicePlugin. With ResourceClaim the scheduler takes the first GPU that fits, "
        "which is Pack.",
    )


class Size(ApiModel):
    """One line for users: a claim with these capacities, by name."""

    name: Annotated[str, Field(min_length=1, max_length=30, pattern=names.SIZE_NAME_PATTERN)] = Field(
        description="Becomes the DeviceClass `<name>.<share>.gpushare.dev` and, in every namespace that may use the "
        "share, the ResourceClaimTemplate `<name>.<share>`. At most 30 characters of a-z, 0-9 and -."
    )
    threads: Percent = Field(description="Percent of the GPU's SMs for each process; at most clients.threads.max.")
    memory: Memory = Field(description="GPU memory reserved for the client; 512Mi to clients.memory.max.")
    memory_limit: Memory | None = Field(
        default=None,
        description="The most GPU memory that the client may use; at most clients.memory.limits.max. Default: what is "
        "reserved.",
    )

    @property
    def memory_mib(self) -> int:
        return parse_mib(self.memory)

    @property
    def burst_mib(self) -> int:
        """How far the client may borrow above what is reserved."""
        return max(0, parse_mib(self.memory_limit) - self.memory_mib) if self.memory_limit else 0

    @property
    def capacities(self) -> dict[str, str]:
        """What a claim of this size asks for, as quantities."""
        found = {names.CAPACITY_THREADS: str(self.threads), names.CAPACITY_MEMORY: format_mib(self.memory_mib)}
        return found | ({names.CAPACITY_MEMORY_BURST: format_mib(self.burst_mib)} if self.burst_mib else {})


_LARGEST = "quantity(has(self.clients.memory.max) ? self.clients.memory.max : self.clients.memory.default)"
_READABLE = (
    "(has(self.clients.memory.max) ? isQuantity(self.clients.memory.max) : isQuantity(self.clients.memory.default))"
)
_TOO_BIG = f"isQuantity(s.memory) && quantity(s.memory).compareTo({_LARGEST}) > 0"
_LIMIT = "has(s.memoryLimit) && isQuantity(s.memoryLimit)"
_LIMITS = "self.clients.memory.limits"
_LIMIT_TOO_BIG = (
    f"{_LIMIT} && (!has({_LIMITS}) || isQuantity({_LIMITS}.max) && "
    f"quantity(s.memoryLimit).compareTo(quantity({_LIMITS}.max)) > 0)"
)
_LIMIT_TOO_SMALL = f"{_LIMIT} && isQuantity(s.memory) && quantity(s.memoryLimit).compareTo(quantity(s.memory)) < 0"
_TOO_SMALL = "isQuantity(s.memory) && quantity(s.memory).compareTo(quantity('512Mi')) < 0"


OWN_DOMAIN = f"{names.GROUP}/"


def _free_name(value: str) -> str:
    """A resource name that the kubelet takes from a device plugin and that is no other share's own."""
    if value.startswith("requests.") or "kubernetes.io/" in value or OWN_DOMAIN in value:
        raise ValueError(NAME_NOT_FREE)
    return value


NAME_NOT_FREE = (
    "must be outside of gpushare.dev, kubernetes.io and requests.*: write one like example.com/gpu or nvidia.com/gpu, "
    "or leave it out for gpushare.dev/<share>"
)
ResourceName = Annotated[
    str,
    Field(
        min_length=3,
        max_length=128,
        pattern=names.RESOURCE_NAME_PATTERN,
        json_schema_extra=checked(
            rule(
                f"!self.startsWith('requests.') && !self.contains('kubernetes.io/') && !self.contains('{OWN_DOMAIN}')",
                NAME_NOT_FREE,
                says=f"'\"' + self + '\" {NAME_NOT_FREE}'",
            ),
        ),
    ),
    AfterValidator(_free_name),
]


class WholeGpus(ApiModel):
    resource_name: ResourceName | None = Field(
        default=None,
        description="The extended resource by which pods ask for GPUs, such as nvidia.com/gpu. On one node a name "
        "belongs to one share, or to another device plugin. Default: gpushare.dev/<share>. Immutable.",
    )


_EITHER = "write spec.clients for shared GPUs or spec.wholeGpus for whole ones, one of the two"
_OF_CLIENTS = {
    "delivery ResourceClaim": "self.delivery == 'DevicePlugin'",
    "sizes": "!has(self.sizes) || size(self.sizes) == 0",
    "enforcement Terminate": "self.enforcement == 'Audit'",
    "maxWait": "!has(self.maxWait)",
}
"""What has no meaning for whole GPUs, and the rule that it is not there."""


class GpuShareSpec(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=checked(
            rule("has(self.clients) != has(self.wholeGpus)", _EITHER),
            rule(
                "has(self.wholeGpus) == has(oldSelf.wholeGpus) && "
                "(!has(self.wholeGpus) || self.wholeGpus == oldSelf.wholeGpus)",
                "wholeGpus is immutable: create a second share and let the GPUs move to it as they drain",
            ),
            *(
                rule(f"!has(self.wholeGpus) || ({absent})", f"not with wholeGpus, which no MPS serves: {what}")
                for what, absent in _OF_CLIENTS.items()
            ),
            rule(
                "!has(self.wholeGpus) || !has(self.wholeGpus.resourceName) || !has(self.allowedNamespaces) || "
                "(!has(self.allowedNamespaces.matchLabels) && !has(self.allowedNamespaces.matchExpressions))",
                "allowedNamespaces needs the name gpushare.dev/<share>, so no wholeGpus.resourceName: others may serve "
                "another name on other nodes; a ResourceQuota bounds it",
                field=".allowedNamespaces",
            ),
            rule(
                "self.delivery == 'ResourceClaim' || !has(self.sizes) || size(self.sizes) == 0",
                "sizes need delivery ResourceClaim: a slot of DevicePlugin has no size of its own",
                field=".sizes",
            ),
            rule(
                "self.delivery == 'ResourceClaim' || !has(self.clients) || self.clients.threads.overcommit == 1",
                "threads.overcommit needs delivery ResourceClaim: with DevicePlugin the number of slots alone bounds "
                "the clients of a GPU",
                field=".clients.threads.overcommit",
            ),
            rule(
                "self.delivery == 'DevicePlugin' || !has(self.clients) || !has(self.clients.placement) || "
                "self.clients.placement == 'Pack'",
                "placement Spread needs delivery DevicePlugin: the scheduler places claims, on the first GPU that fits",
                field=".clients.placement",
            ),
            rule(
                "!has(self.sizes) || !has(self.clients) || self.sizes.all(s, s.threads <= self.clients.threads.max)",
                "a size's threads must not exceed clients.threads.max",
                field=".sizes",
            ),
            rule(
                f"!has(self.sizes) || !has(self.clients) || !{_READABLE} || !self.sizes.exists(s, {_TOO_BIG})",
                "a size's memory must not exceed clients.memory.max",
                field=".sizes",
            ),
            rule(
                f"!has(self.sizes) || !self.sizes.exists(s, {_TOO_SMALL})",
                "a size's memory must be at least 512Mi: the CUDA context alone needs up to 520 MiB of it",
                field=".sizes",
            ),
            rule(
                f"!has(self.sizes) || !has(self.clients) || !self.sizes.exists(s, {_LIMIT_TOO_BIG})",
                "a size's memoryLimit needs clients.memory.limits, and must not exceed its max",
                field=".sizes",
            ),
            rule(
                f"!has(self.sizes) || !self.sizes.exists(s, {_LIMIT_TOO_SMALL})",
                "a size's memoryLimit must be at least its memory, which is reserved",
                field=".sizes",
            ),
            rule(
                "self.delivery == 'DevicePlugin' || !has(self.clients) || !has(self.clients.memory.limits) || "
                "!has(self.clients.memory.limits.default)",
                "limits.default needs delivery DevicePlugin: a claim asks for capacity memoryBurst, or names a size "
                "that has a memoryLimit",
                field=".clients.memory.limits.default",
            ),
        )
    )

    node_selector: LabelSelector = Field(
        default_factory=LabelSelector,
        description="Nodes whose GPUs this share takes. Default: every node that has an agent.",
    )
    gpus: GpuSelection = Field(default_factory=GpuSelection, description="Which GPUs of those nodes are taken.")
    clients: Clients | None = Field(
        default=None, description="How each GPU is divided, and what a client is granted. Either this or wholeGpus."
    )
    whole_gpus: WholeGpus | None = Field(
        default=None,
        description="Gives containers whole GPUs, without MPS: one container has one or several of a node for itself. "
        "In place of `clients`; not with ResourceClaims, sizes, maxWait or enforcement Terminate.",
    )
    allowed_namespaces: LabelSelector = Field(
        default_factory=LabelSelector,
        description="Namespaces, by their labels, whose pods may use this share. Default: all.",
    )
    enforcement: Enforcement = Field(
        default=Enforcement.AUDIT,
        description="What happens to a client seen above its grant: Audit reports it (event, metric, condition), "
        "Terminate ends it through the MPS daemon so that its neighbours go on.",
    )
    fault_timeout: Duration = Field(
        default="5m",
        description="How long faulted clients may run on after a fatal GPU fault before they are ended. Their CUDA "
        "contexts are lost already, but until the last client has ended the GPU takes no new one.",
    )
    max_wait: Duration | None = Field(
        default=None,
        description="How long a change waits for a GPU's clients before it ends them, in order. Such a change needs a "
        "new MPS daemon (image, driver root, resources), removes the GPU from the share, or deletes the share. "
        "Default: for ever; no running client is ever ended for a change.",
    )
    sizes: list[Size] = Field(
        default_factory=list,
        max_length=16,
        description="Delivery ResourceClaim only: claims by name, each a DeviceClass and a ResourceClaimTemplate of "
        "its own, so that a pod asks for one in a line and a ResourceQuota counts them exactly.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    delivery: Delivery = Field(
        default=Delivery.DEVICE_PLUGIN,
        description="How pods ask for their part: DevicePlugin (equal slots, resource gpushare.dev/<share>) or "
        "ResourceClaim (every claim with its own threads and memory; Kubernetes 1.36 or newer). "
        "Immutable: to change it, create a second share and let the GPUs move as they drain.",
        json_schema_extra=checked(
            rule(
                "self == oldSelf",
                "delivery is immutable: create a second share with the other delivery and delete this one once its "
                "pods are gone",
            )
        ),
    )

    @model_validator(mode="after")
    def _clients_or_whole(self) -> "GpuShareSpec":
        if (self.clients is None) == (self.whole_gpus is None):
            raise ValueError(_EITHER)
        return self


ONE_CONTAINER = Clients(per_gpu=1, memory=MemoryGrant(default="512Mi"))
"""A whole GPU in sums over slots: one container has it. Nothing else of it means anything."""


class GpuCounts(ApiModel):
    matching: int = Field(default=0, ge=0, description="GPUs that the selectors match.")
    assigned: int = Field(default=0, ge=0, description="GPUs that belong to this share.")
    ready: int = Field(default=0, ge=0, description="Assigned GPUs whose daemon is verified.")
    draining: int = Field(default=0, ge=0, description="Assigned GPUs that leave this share once idle.")


class SlotCounts(ApiModel):
    total: int = Field(default=0, ge=0, description="Slots on ready GPUs.")
    used: int = Field(default=0, ge=0, description="Slots held by containers.")


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
        default_factory=list, max_length=8, description="Some of the pending claims that fit on no GPU now."
    )


class GpuShareStatus(ApiModel):
    observed_generation: int = Field(default=0, ge=0, description="The spec's generation that this status is about.")
    gpus: GpuCounts = Field(default_factory=GpuCounts)
    slots: SlotCounts = Field(default_factory=SlotCounts)
    nodes: int = Field(default=0, ge=0, description="Nodes with a GPU of this share.")
    summary: str = Field(default="", max_length=64, description="Ready and assigned GPUs, such as 2/2.")
    threads: str = Field(default="", max_length=64, description="Default and maximal percent, such as 25/50%.")
    memory: str = Field(default="", max_length=64, description="Default and maximal memory, such as 16Gi/16Gi.")
    gpu_memory_mib: int = Field(
        default=0,
        ge=0,
        description="Memory, in MiB, of the largest GPU of this share: what fractions count from.",
    )
    claims: ClaimCounts | None = Field(default=None, description="Delivery ResourceClaim only.")
    unavailable: list[UnavailableGpus] = Field(default_factory=list, max_length=32)
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )


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
        """Its GPUs are given whole, without MPS."""
        return self.spec.whole_gpus is not None

    @property
    def resource(self) -> str:
        """The extended resource of its slots, or of its whole GPUs."""
        whole = self.spec.whole_gpus
        return (whole.resource_name if whole is not None else None) or names.slot_resource(self.name)

    @property
    def clients(self) -> Clients:
        """Of whole GPUs: one container on each."""
        return self.spec.clients or ONE_CONTAINER

    @property
    def by_claims(self) -> bool:
        """Delivered by ResourceClaim."""
        return self.spec.delivery is Delivery.RESOURCE_CLAIM

    @property
    def terminates(self) -> bool:
        """Whether clients above their grant are ended."""
        return self.spec.enforcement is Enforcement.TERMINATE

    @property
    def shows_grant(self) -> bool:
        """Whether a client sees what is reserved for it as the GPU's memory."""
        return self.clients.memory.reported_total is ReportedTotal.GRANT

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
    def contexts_per_gpu(self) -> int:
        return self.clients.per_gpu * self.clients.processes

    @property
    def process_limits(self) -> Limits:
        """The limits that each MPS daemon of the share enforces on each client process."""
        clients = self.clients
        return Limits(
            threads=clients.threads.max,
            memory_mib=max(1, self.memory_limit_max_mib // clients.processes),
            priority=1 if clients.priority is Priority.BELOW_NORMAL else 0,
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
