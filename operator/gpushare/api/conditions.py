"""Types and reasons of conditions, reasons of events: the words that users search for, each defined once."""

from enum import StrEnum


class ConditionType(StrEnum):
    READY = "Ready"
    GPUS_ASSIGNED = "GpusAssigned"
    DAEMONS_READY = "DaemonsReady"
    LIMITS_ENFORCED = "LimitsEnforced"
    DAEMONS_CURRENT = "DaemonsCurrent"
    DEPARTURES_GUARDED = "DeparturesGuarded"
    WRITES_ACCEPTED = "WritesAccepted"  # of a share only while it is False; of a GpuNode since the first refusal


MEMORY_PRESSURE = "MemoryPressure"
"""Condition of a GpuNode: True while a GPU has less free memory than its clients have reserved and do not use."""
AGENT_REPORTING = "AgentReporting"
"""Condition of a GpuNode, written by the operator: True while the agent's heartbeat is renewed, Unknown otherwise."""
NVML_REACHABLE = "NvmlReachable"
"""Condition of a GpuNode: True while NVML describes every GPU that it counts."""
GPUS_EXCLUSIVE = "GpusExclusive"
"""Condition of a GpuNode: False while processes can use a shared GPU past MPS, or NVIDIA's parts offer it, too."""


class ShareReason(StrEnum):
    """Reasons on GpuShare conditions."""

    READY = "Ready"
    ASSIGNED = "Assigned"
    NO_MATCHING_NODES = "NoMatchingNodes"
    PRODUCT_MISMATCH = "ProductMismatch"
    GPUS_UNAVAILABLE = "GpusUnavailable"
    SOME_GPUS_UNAVAILABLE = "SomeGpusUnavailable"
    DAEMONS_READY = "DaemonsReady"
    DAEMONS_STARTING = "DaemonsStarting"  # becomes DaemonNotReady where it lasts
    DAEMON_NOT_READY = "DaemonNotReady"
    LIMITS_IN_FORCE = "LimitsInForce"
    LIMITS_PENDING = "LimitsPending"
    GRANTS_EXCEEDED = "GrantsExceeded"
    DELIVERY_UNSUPPORTED = "DeliveryUnsupported"
    DRAINING = "Draining"
    RELEASING = "Releasing"
    DAEMONS_CURRENT = "DaemonsCurrent"
    WAITING_FOR_CLIENTS = "WaitingForClients"
    ROLLING_OUT = "RollingOut"
    ROLLOUT_STOPPED = "RolloutStopped"
    DEPARTURES_GUARDED = "DeparturesGuarded"
    AGENT_SILENT = "AgentSilent"
    WRITE_REFUSED = "WriteRefused"


class GpuReason(StrEnum):
    """Why a share cannot take a GPU. Checked in this order; the first that applies is reported."""

    NODE_NOT_READY = "NodeNotReady"
    AGENT_SILENT = "AgentSilent"
    PRODUCT_MISMATCH = "ProductMismatch"
    HELD_BY_NVIDIA_PLUGIN = "HeldByNvidiaPlugin"
    HELD_BY_NVIDIA_DRA = "HeldByNvidiaDra"
    HELD_BY_PODS = "HeldByPods"
    DRIVER_UPGRADING = "DriverUpgrading"
    MIG_ENABLED = "MigEnabled"
    COMPUTE_CAPABILITY_TOO_LOW = "ComputeCapabilityTooLow"
    FOREIGN_COMPUTE_MODE = "ForeignComputeMode"
    IN_USE = "InUse"
    GPU_LOST = "GpuLost"
    CLIENT_CEILING = "ClientCeiling"
    MEMORY_OVERCOMMITTED = "MemoryOvercommitted"
    HELD_BY_SHARE = "HeldByShare"
    RESOURCE_NAME_TAKEN = "ResourceNameTaken"
    PER_NODE_REACHED = "PerNodeReached"


class DaemonReason(StrEnum):
    """State of one GPU's MPS daemon, or of a whole GPU, as the node's agent reports it."""

    READY = "Ready"
    PENDING = "Pending"  # no supervisor has taken it yet
    STARTING = "Starting"
    DAEMON_FAILED = "DaemonFailed"  # message carries the daemon's own line
    SERVER_NOT_ACTIVE = "ServerNotActive"
    SERVER_CONTEXT_LOST = "ServerContextLost"  # ACTIVE, but NVML shows no context of it
    FAULTED = "Faulted"  # a fatal fault; no new client until its last client has ended
    GPU_LOST = "GpuLost"
    CLIENT_TABLE_FULL = "ClientTableFull"  # serves its clients, and takes no more
    LIMITS_NOT_IN_FORCE = "LimitsNotInForce"
    CONTROL_TIMEOUT = "ControlTimeout"  # wedged: control commands hang
    GPU_HELD_BY_FOREIGN_PROCESS = "GpuHeldByForeignProcess"
    SUPERVISOR_SILENT = "SupervisorSilent"
    BROKER_NOT_READY = "BrokerNotReady"  # clients cannot attach; those that run go on
    GATE_NOT_OPEN = "GateNotOpen"  # its CDI spec cannot be written, so no container starts; those that run go on
    NOFILE_TOO_LOW = "NofileTooLow"
    RESOURCE_NAME_TAKEN = "ResourceNameTaken"  # of a whole GPU: another device plugin offers its resource
    STOPPING = "Stopping"
    UNKNOWN = "Unknown"  # a supervisor of another release gives a reason that this one has no word for; message has it

    @classmethod
    def _missing_(cls, value: object) -> "DaemonReason | None":
        """The present name of a reason in a state.json that a supervisor of an earlier release wrote."""
        return cls.SERVER_CONTEXT_LOST if value == "ServerLetGo" else None


class EventReason(StrEnum):
    """Reasons of events. The ShareReasons of a share's Ready condition are reasons of events too."""

    GPU_ASSIGNED = "GpuAssigned"
    GPU_DRAINING = "GpuDraining"
    GPU_RELEASED = "GpuReleased"
    GPU_PART_GRANTED = "GpuPartGranted"
    CLIENT_TERMINATED = "ClientTerminated"
    CLIENT_FAULTED = "ClientFaulted"
    UNGUARDED_DEPARTURE = "UnguardedDeparture"
    DAEMON_RESTARTED = "DaemonRestarted"
    BROKER_RESTARTED = "BrokerRestarted"
    GPU_FAULT = "GpuFault"
    GPU_LOST = "GpuLost"
    CLIENT_TABLE_FULL = "ClientTableFull"
    FAULTED_CLIENTS_ENDED = "FaultedClientsEnded"
    DAEMON_REPLACED = "DaemonReplaced"
    MAX_WAIT_EXPIRED = "MaxWaitExpired"
    PROCESS_ENDED = "ProcessEnded"
    MEMORY_ABOVE_GRANT = "MemoryAboveGrant"
    TOO_MANY_PROCESSES = "TooManyProcesses"
    TOO_MANY_CONTEXTS = "TooManyContexts"
    NEVER_ATTACHED = "NeverAttached"
    CLASS_NOT_TAKEN = "ClassNotTaken"
    COMPUTES_WITHOUT_PLACE = "ComputesWithoutPlace"
    CLIENT_NOT_LISTED = "ClientNotListed"
    NOT_AN_MPS_CLIENT = "NotAnMpsClient"
    CDI_EDITS_MISSING = "CdiEditsMissing"
    MOUNTS_UNKNOWN = "MountsUnknown"
    NO_GRANT = "NoGrant"
    NOT_THE_HOLDER = "NotTheHolder"
    DUPLICATE_ALLOCATION = "DuplicateAllocation"
    ATTACH_REFUSED = "AttachRefused"
    LIMIT_VARIABLE_CHANGED = "LimitVariableChanged"
    SERVER_HUNG = "ServerHung"
    ACTIVITY_INVALID = "ActivityInvalid"
    ALWAYS_BUSY = "AlwaysBusy"
    LONG_KERNELS = "LongKernels"
    WAITS_FOR_PLACE = "WaitsForPlace"
    IDLE_NOTICE = "IdleNotice"
    MEMORY_SHORT = "MemoryShort"
    MEMORY_SUFFICIENT = "MemorySufficient"
    CLAIM_PENDING = "ClaimPending"
    AGENT_SILENT = "AgentSilent"
    AGENT_REPORTING = "AgentReporting"


FINDING_REASONS = (
    EventReason.MEMORY_ABOVE_GRANT,
    EventReason.TOO_MANY_PROCESSES,
    EventReason.TOO_MANY_CONTEXTS,
    EventReason.NEVER_ATTACHED,
    EventReason.CLASS_NOT_TAKEN,
    EventReason.COMPUTES_WITHOUT_PLACE,
    EventReason.CLIENT_NOT_LISTED,
    EventReason.NOT_AN_MPS_CLIENT,
    EventReason.CDI_EDITS_MISSING,
    EventReason.MOUNTS_UNKNOWN,
    EventReason.NO_GRANT,
    EventReason.NOT_THE_HOLDER,
)
"""Reasons of findings; each is an event's reason too."""
