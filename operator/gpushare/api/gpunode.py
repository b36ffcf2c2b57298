"""GpuNode: one per node, named like it and owned by it. The operator writes the spec, the node's agent the status."""

from typing import Annotated, Literal

from pydantic import Field

from gpushare.api import names
from gpushare.api.base import ApiModel
from gpushare.api.compute_mode import ComputeMode, ComputeModePolicy
from gpushare.api.conditions import AGENT_REPORTING, NVML_REACHABLE
from gpushare.api.meta import Condition, ObjectMeta

Uuid = Annotated[str, Field(min_length=1, max_length=48, pattern=r"^[A-Za-z0-9-]+$")]
ShareName = Annotated[str, Field(min_length=1, max_length=40, pattern=names.SHARE_NAME_PATTERN)]
"""The name of a GpuShare: what an agent writes here becomes a label of its Node."""
MAX_GPUS = 32
MAX_PODS = 8
"""Pods that are listed for each GPU and share: enough to know whom to ask, and few enough for the API server."""
MAX_FINDINGS = 64
MAX_UNUSED = 64
MAX_BORROWERS = 64


class Assignment(ApiModel):
    uuid: Uuid = Field(description="The GPU's NVML UUID.")
    share: ShareName = Field(description="The GpuShare that the GPU belongs to.")
    draining: bool = Field(
        default=False,
        description="True: offer no free slots any more; the GPU leaves the share once no container holds one.",
    )
    paused: bool = Field(
        default=False,
        description="True: offer no free slots for now; the GPU stays with the share, whose MPS pod is about to be "
        "replaced on this node.",
    )
    terminate_clients: bool = Field(
        default=False,
        description="True: the share's maxWait is over. No container starts on the GPU any more, and its clients are "
        "terminated in order, through the MPS daemon.",
    )
    waiting_since: str | None = Field(
        default=None,
        description="Since when a change waits for the GPU's clients. The share's maxWait counts from it.",
        json_schema_extra={"format": "date-time"},
    )


class GpuNodeSpec(ApiModel):
    assignments: list[Assignment] | None = Field(
        default=None,
        max_length=MAX_GPUS,
        description="Which GPU belongs to which share. Absent: the agent changes nothing.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uuid"]},
    )


class ForeignProcess(ApiModel):
    pid: int = Field(ge=0, description="PID in the node's PID namespace.")
    memory_mib: int = Field(default=0, ge=0, description="GPU memory in MiB.")
    command: str = Field(default="", max_length=64)


class Gpu(ApiModel):
    uuid: Uuid
    index: int = Field(ge=0, description="NVML index.")
    minor: int = Field(ge=0, description="N of /dev/nvidiaN.")
    product: str = Field(max_length=64, description="NVML product name.")
    memory_mib: int = Field(ge=0, description="Total memory in MiB.")
    sms: int = Field(ge=0, description="Streaming multiprocessors.")
    compute_capability: str = Field(default="", max_length=8, description="Such as 9.0.")
    numa_node: int | None = Field(default=None, description="NUMA node, where the platform reports it.")
    compute_mode: ComputeMode = Field(description="Compute mode now.")
    original_compute_mode: ComputeMode | None = Field(
        default=None, description="Mode found before we took the GPU; restored on release."
    )
    mig_enabled: bool = Field(default=False)
    lost: bool = Field(default=False, description="NVML no longer reaches it.")
    foreign_processes: list[ForeignProcess] = Field(
        default_factory=list, max_length=16, description="Compute processes that are no MPS clients."
    )


class Limits(ApiModel):
    """The ceiling of each MPS client process of a GPU."""

    threads: int = Field(ge=1, le=100, description="Percent of SMs.")
    memory_mib: int = Field(ge=1, description="MiB per process.")


class DaemonStatus(ApiModel):
    uuid: Uuid
    share: ShareName
    ready: bool = Field(
        default=False,
        description="Server ACTIVE, its context seen by NVML, and the limits read back as desired. Of a whole GPU: a "
        "container may have it.",
    )
    reason: str = Field(default="", max_length=64)
    message: str = Field(default="", max_length=1024, description="With the daemon's own log line where it failed.")
    desired_limits: Limits | None = Field(default=None, description="Limits by the share's spec.")
    current_limits: Limits | None = Field(default=None, description="Limits read back from the MPS daemon.")
    resource: str = Field(
        default="",
        max_length=128,
        description="Of a GPU that containers get whole: the extended resource by which they ask. No MPS daemon runs.",
    )
    server_pid: int | None = Field(default=None, ge=0)
    protocol: str = Field(
        default="",
        max_length=16,
        description="What the MPS daemon speaks: V2, or V3 where mps.protocol is Auto and the driver has it; empty "
        "while no MPS server runs.",
    )
    restarts: int = Field(default=0, ge=0, description="Times the control daemon was started again.")
    drained: bool = Field(
        default=False,
        description="Draining, free slots withdrawn and confirmed, and no container holds a slot.",
    )


class Holder(ApiModel):
    uuid: Uuid
    share: ShareName
    slots: list[Annotated[int, Field(ge=0, le=1024)]] = Field(
        max_length=256,
        description="Slots held by containers, or handed out by Allocate and not yet listed by the kubelet.",
    )
    pods: list[Annotated[str, Field(max_length=317)]] = Field(
        default_factory=list,
        max_length=MAX_PODS,
        description="Some of the pods that hold them, as namespace/name.",
    )
    reserved_mib: int | None = Field(
        default=None,
        ge=0,
        description="Memory reserved for these containers together, in MiB; only of a share with memory.limits.",
    )
    limits_mib: int | None = Field(
        default=None,
        ge=0,
        description="What they may use together at most, in MiB; only of a share with memory.limits.",
    )


Client = Annotated[str, Field(max_length=381)]
"""A container, as namespace/pod/container."""


class GpuPlaces(ApiModel):
    """The places of a GPU whose share has a queue (clients.queue), by its attach broker."""

    uuid: Uuid
    share: ShareName
    limit: int = Field(ge=0, description="Containers that may have CUDA contexts on the GPU at the same time.")
    used: int = Field(ge=0, description="Containers that have a place.")
    waiting: int = Field(ge=0, description="Containers whose processes wait for a place.")
    held: list[Client] = Field(
        default_factory=list, max_length=64, description="Who has a place, as namespace/pod/container."
    )
    queue: list[Client] = Field(
        default_factory=list, max_length=64, description="Who waits, as namespace/pod/container; the next one first."
    )


class ForeignHolder(ApiModel):
    """A pod of this node that asked for a whole NVIDIA GPU."""

    namespace: str = Field(max_length=63)
    pod: str = Field(max_length=253)
    resource: str = Field(max_length=128)


class Finding(ApiModel):
    """A confirmed violation: somebody uses a shared GPU beyond the grant, or a whole one that another container has.
    Figures are of the first reading.
    """

    uuid: Uuid
    share: ShareName = Field(description="The GpuShare that the GPU belongs to.")
    reason: str = Field(
        max_length=64,
        description="MemoryAboveGrant, TooManyProcesses, TooManyContexts, NeverAttached, ClassNotTaken, "
        "ComputesWithoutPlace, ClientNotListed, NotAnMpsClient, CdiEditsMissing, MountsUnknown, NoGrant or "
        "NotTheHolder; also an event's.",
    )
    namespace: str = Field(default="", max_length=63, description="Empty for a process of the host.")
    pod: str = Field(default="", max_length=253)
    pod_uid: str = Field(default="", max_length=64)
    container: str = Field(default="", max_length=63)
    pid: int = Field(default=0, ge=0, description="One of the processes, in the node's PID namespace.")
    granted: int = Field(
        ge=0, description="MiB; processes or contexts where the reason names these; 0 where nothing is granted."
    )
    observed: int = Field(ge=0, description="In the same unit.")
    message: str = Field(default="", max_length=1024, description="The use and the grant, in words.")
    since: str = Field(description="When it was found.", json_schema_extra={"format": "date-time"})
    ended: bool = Field(
        default=False,
        description="The CUDA contexts of a process were ended; until the process exits it is listed with its memory.",
    )


class Borrower(ApiModel):
    """A container that uses more memory than is reserved for it, as its limit allows."""

    uuid: Uuid
    share: ShareName
    namespace: str = Field(max_length=63)
    pod: str = Field(max_length=253)
    pod_uid: str = Field(default="", max_length=64)
    container: str = Field(max_length=63)
    priority: int = Field(default=0, description="The pod's: the lowest is the first to be ended.")
    reserved_mib: int = Field(ge=0, description="MiB reserved for the container.")
    limit_mib: int = Field(ge=0, description="MiB that the container may use at most.")
    observed_mib: int = Field(ge=0, description="MiB that it used when it was found; metrics have the present figure.")
    since: str = Field(description="When it was found.", json_schema_extra={"format": "date-time"})
    ends_at: str | None = Field(
        default=None,
        description="When it is ended, unless the GPU has enough free memory before; absent without notice.",
        json_schema_extra={"format": "date-time"},
    )


class UnusedPart(ApiModel):
    """A running container that holds a part of a GPU and has had no client on it for two minutes or longer."""

    uuid: Uuid
    share: ShareName
    namespace: str = Field(max_length=63)
    pod: str = Field(max_length=253)
    container: str = Field(max_length=63)
    held_since: str | None = Field(
        default=None,
        description="When the container started; absent where its pod's status does not say.",
        json_schema_extra={"format": "date-time"},
    )
    unused_since: str = Field(
        description="When its last client was seen; when it started, where it had none.",
        json_schema_extra={"format": "date-time"},
    )


class GpuNodeStatus(ApiModel):
    observed_generation: int = Field(default=0, ge=0)
    simulated: bool = Field(default=False, description="True: these GPUs are a simulation, not hardware.")
    driver_version: str = Field(default="", max_length=32)
    cuda_version: str = Field(default="", max_length=16)
    client_ceiling: int = Field(default=48, ge=0, description="MPS contexts that the driver takes on one GPU.")
    agent_version: str = Field(default="", max_length=64)
    compute_mode_policy: ComputeModePolicy = Field(
        default=ComputeModePolicy.MANAGE,
        description="Manage: the agent sets ExclusiveProcess on the GPUs that are shared and restores what it found. "
        "Leave: it sets none; the condition GpusExclusive says whether processes can use those GPUs without MPS.",
    )
    gpus: list[Gpu] = Field(
        default_factory=list,
        max_length=MAX_GPUS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uuid"]},
    )
    daemons: list[DaemonStatus] = Field(
        default_factory=list,
        max_length=MAX_GPUS,
        description="The GPUs that shares hold here: of each its MPS daemon, which runs or ends, or that it is given "
        "whole (resource). A share holds a GPU as long as it is listed.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uuid"]},
    )
    holders: list[Holder] = Field(default_factory=list, max_length=MAX_GPUS)
    places: list[GpuPlaces] = Field(
        default_factory=list, max_length=MAX_GPUS, description="Places on GPUs whose share has a queue, and who waits."
    )
    foreign_holders: list[ForeignHolder] = Field(default_factory=list, max_length=16)
    findings: list[Finding] = Field(
        default_factory=list,
        max_length=MAX_FINDINGS,
        description="Confirmed violations of grants; the oldest ones where there are more.",
    )
    borrowers: list[Borrower] = Field(
        default_factory=list,
        max_length=MAX_BORROWERS,
        description="Containers that use more memory than is reserved for them; those first that are ended first.",
    )
    unused: list[UnusedPart] = Field(
        default_factory=list,
        max_length=MAX_UNUSED,
        description="Containers that hold a part of a GPU without a client; those unused longest where there are more.",
    )
    pre_stop_mounted: bool = Field(
        default=False,
        description="The container with a part of a GPU that was started last here has gpushare's program for preStop "
        "hooks mounted.",
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )


class GpuNode(ApiModel):
    """The GPUs of one node, which share each belongs to, and how its MPS daemons are."""

    api_version: Literal["gpushare.dev/v1alpha1"] = "gpushare.dev/v1alpha1"
    kind: Literal["GpuNode"] = "GpuNode"
    metadata: ObjectMeta
    spec: GpuNodeSpec = Field(default_factory=GpuNodeSpec, description="Written by the operator alone.")
    status: GpuNodeStatus = Field(
        default_factory=GpuNodeStatus,
        description="Written by the node's agent; its condition AgentReporting by the operator, which sets the others "
        "to Unknown while the agent is silent.",
    )

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def agent_reporting(self) -> Condition | None:
        """The condition AgentReporting; None: the operator does not know yet whether the agent reports."""
        return self._condition(AGENT_REPORTING)

    @property
    def lists_every_gpu(self) -> bool:
        """Whether a GPU that the agent's report does not list is not in the node."""
        condition = self._condition(NVML_REACHABLE)
        return condition is not None and condition.status == "True" and bool(self.status.gpus) and not self.silence

    def _condition(self, kind: str) -> Condition | None:
        return next((item for item in self.status.conditions if item.type == kind), None)

    @property
    def silence(self) -> str:
        """Why the agent's report may be old, by the condition AgentReporting; empty where nothing says that it is."""
        condition = self.agent_reporting
        return "" if condition is None or condition.status == "True" else condition.message or "the agent is silent"
