"""A simulated GPU for ways that bring none: the driver as a process of the node, its device by a CDI spec.

gpushare's chart has its own. NVIDIA's plugin knows no simulated GPU: its installation cannot be rehearsed.
"""

import json
import sys

from gpushare.simulation import bin_dir
from localcluster.paths import REPOSITORY
from tests.cluster.harness import Harness, wait_until
from tests.cluster.node import kill_if_there
from tests.gpu.stack.bring import SIMULATED_GPU
from tests.peers.ways.processes import pid_of, start_in_node

DIRECTORY = "/run/peers-simulation"
PROGRAM, DRIVER = "gpushare.cli.main", "simulated-driver"
"""Started as a module: the driver of gpushare's chart, whose pod may still be ending, is started by another name."""
SPECIFICATION = "/etc/cdi/nvidia.json"
ENVIRONMENT = {"GPUSHARE_SIMULATION_DIR": DIRECTORY, "PYTHONPATH": f"{REPOSITORY}/operator"}
PROGRAMS = bin_dir()
"""Of a simulated MPS."""


def begin(harness: Harness) -> None:
    """The driver has its GPU when this returns."""
    if pid_of(harness, PROGRAM) is None:
        gpu = (f"--{name.replace('_', '-')}={SIMULATED_GPU[name]}" for name in ("product", "sms", "memory_mib"))
        start_in_node(harness, [sys.executable, "-m", PROGRAM, DRIVER, "--gpus=1", *gpu], ENVIRONMENT)
    driver = harness.in_node(f"{DIRECTORY}/driver.sock")
    wait_until("the simulated driver", driver.exists)
    specification = harness.in_node(SPECIFICATION)
    specification.parent.mkdir(exist_ok=True)
    specification.write_text(json.dumps(_device()))


def end(harness: Harness) -> None:
    harness.in_node(SPECIFICATION).unlink(missing_ok=True)
    if pid := pid_of(harness, PROGRAM):
        kill_if_there(harness, pid)


def _device() -> dict[str, object]:
    device = {"hostPath": f"{DIRECTORY}/dev", "containerPath": f"{DIRECTORY}/dev", "options": ["rw", "rbind"]}
    edits = {"env": [f"GPUSHARE_SIMULATION_DIR={DIRECTORY}"], "mounts": [device]}
    return {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all", "containerEdits": edits}]}
