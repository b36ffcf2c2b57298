"""Condition types and reasons: the sentences that users search for, each named once."""

from enum import StrEnum


class ConditionType(StrEnum):
    READY = "Ready"
    GPUS_ASSIGNED = "GpusAssigned"
    DAEMONS_READY = "DaemonsReady"
    LIMITS_ENFORCED = "LimitsEnforced"


class ShareReason(StrEnum):
    """Reasons on GpuShare conditions."""

    READY = "Ready"
    ASSIGNED = "Assigned"
    NO_MATCHING_NODES = "NoMatchingNodes"
    GPUS_UNAVAILABLE = "GpusUnavailable"
    SOME_GPUS_UNAVAILABLE = "SomeGpusUnavailable"
    DAEMONS_READY = "DaemonsReady"
    DAEMON_NOT_READY = "DaemonNotReady"
    LIMITS_IN_FORCE = "LimitsInForce"
    LIMITS_PENDING = "LimitsPending"
    DELIVERY_UNSUPPORTED = "DeliveryUnsupported"
    DRAINING = "Draining"
    RELEASING = "Releasing"


class GpuReason(StrEnum):
    """Why a GPU cannot be taken by a share; evaluated in this order, the first that applies is told."""

    NODE_NOT_READY = "NodeNotReady"
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
    OVER_PER_NODE = "OverPerNode"


class DaemonReason(StrEnum):
    """State of one GPU's MPS daemon as its node tells it."""

    READY = "Ready"
    PENDING = "Pending"  # no supervisor has taken it yet
    STARTING = "Starting"
    DAEMON_FAILED = "DaemonFailed"  # message carries the daemon's own line
    SERVER_NOT_ACTIVE = "ServerNotActive"
    SERVER_LET_GO = "ServerLetGo"  # ACTIVE, but NVML shows no context of it
    LIMITS_NOT_IN_FORCE = "LimitsNotInForce"
    CONTROL_TIMEOUT = "ControlTimeout"  # wedged: control commands hang
    GPU_HELD_BY_FOREIGN_PROCESS = "GpuHeldByForeignProcess"
    SUPERVISOR_SILENT = "SupervisorSilent"
    NOFILE_TOO_LOW = "NofileTooLow"
    STOPPING = "Stopping"
