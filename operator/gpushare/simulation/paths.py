"""The places of the simulated driver and MPS. The driver has one directory, the same in containers as on the node.

driver.sock       NVML and the tests' admin channel
dev/nvidia<minor> the device nodes: each connection is a process that opened the device
"""

import os

TYPE_CHECKING = False  # the control program imports this: `typing` would cost 6 ms
if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_DIRECTORY = "/run/gpushare-simulation"
ENV_DIRECTORY = "GPUSHARE_SIMULATION_DIR"
_DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - CUDA's own default


def directory() -> str:
    return os.environ.get(ENV_DIRECTORY) or DEFAULT_DIRECTORY


def pipe_directory(environ: "Mapping[str, str]" = os.environ) -> str:
    """$CUDA_MPS_PIPE_DIRECTORY, else CUDA's default."""
    return environ.get("CUDA_MPS_PIPE_DIRECTORY") or _DEFAULT_PIPE_DIRECTORY


def driver_socket(base: str) -> str:
    return f"{base}/driver.sock"


def device_node(base: str, minor: int) -> str:
    return f"{base}/dev/nvidia{minor}"


def device_nodes(base: str) -> list[str]:
    """The device nodes that exist here, by minor number. A container has only those that are mounted into it."""
    try:
        names = os.listdir(f"{base}/dev")  # noqa: PTH208 - pathlib costs 10 ms of start-up
    except OSError:
        return []
    minors = sorted(int(name[6:]) for name in names if name.startswith("nvidia") and name[6:].isdigit())
    return [device_node(base, minor) for minor in minors]
