"""The numbers of CUDA's runtime errors, as the client sees them, and their names."""

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
UNAVAILABLE = 46
NO_DEVICE = 100
ILLEGAL_ADDRESS = 700
ASSERT = 710
LAUNCH_FAILURE = 719
MPS_CONNECTION_FAILED = 805
MPS_RPC_FAILURE = 806
MPS_SERVER_NOT_READY = 807
MPS_MAX_CLIENTS = 808
MPS_CLIENT_TERMINATED = 810
UNKNOWN = 999

NAMES = {
    INVALID_VALUE: "cudaErrorInvalidValue",
    OUT_OF_MEMORY: "cudaErrorMemoryAllocation",
    NOT_INITIALIZED: "cudaErrorInitializationError",
    UNAVAILABLE: "cudaErrorDevicesUnavailable",
    NO_DEVICE: "cudaErrorNoDevice",
    ILLEGAL_ADDRESS: "cudaErrorIllegalAddress",
    ASSERT: "cudaErrorAssert",
    LAUNCH_FAILURE: "cudaErrorLaunchFailure",
    MPS_CONNECTION_FAILED: "cudaErrorMpsConnectionFailed",
    MPS_RPC_FAILURE: "cudaErrorMpsRpcFailure",
    MPS_SERVER_NOT_READY: "cudaErrorMpsServerNotReady",
    MPS_MAX_CLIENTS: "cudaErrorMpsMaxClientsReached",
    MPS_CLIENT_TERMINATED: "cudaErrorMpsClientTerminated",
    UNKNOWN: "cudaErrorUnknown",
}
