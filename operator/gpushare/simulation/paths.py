"""Where the simulated driver is found: one directory, the same in containers as on the node.

driver.sock       NVML and the tests' admin channel
dev/nvidia<minor> the device nodes: a connection is a process that opened the device
"""

import os

DEFAULT_DIRECTORY = "/run/gpushare-simulation"
ENV_DIRECTORY = "GPUSHARE_SIMULATION_DIR"


def directory() -> str:
    return os.environ.get(ENV_DIRECTORY) or DEFAULT_DIRECTORY


def driver_socket(base: str) -> str:
    return f"{base}/driver.sock"


def device_node(base: str, minor: int) -> str:
    return f"{base}/dev/nvidia{minor}"


def device_nodes(base: str) -> list[str]:
    """The device nodes that exist here, by minor number. A container sees only those bound into it."""
    try:
        names = os.listdir(f"{base}/dev")  # noqa: PTH208 - pathlib costs 10 ms of start-up
    except OSError:
        return []
    minors = sorted(int(name[6:]) for name in names if name.startswith("nvidia") and name[6:].isdigit())
    return [device_node(base, minor) for minor in minors]
