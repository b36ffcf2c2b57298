"""Simulated GPUs for ways that bring none: the driver as a process of the node, its devices by a CDI spec.

gpushare's chart has its own.
"""

import json
import sys

from gpushare.simulation import bin_dir
from gpushare.simulation.driver.state import make_gpus
from localcluster.paths import REPOSITORY
from measurements.gpu.stack import bring
from measurements.gpu.stack.bring import SIMULATED_GPU
from measurements.peers.ways.processes import pid_of, start_in_node
from tests.cluster.harness import Harness, wait_until
from tests.cluster.node import kill_if_there

DIRECTORY = "/run/peers-simulation"
PROGRAM, DRIVER = "gpushare.cli.main", "simulated-driver"
"""Started as a module: the driver of gpushare's chart, whose pod may still be ending, is started by another name."""
NAME = "peers"
"""The name of the node, as far as the GPUs' UUIDs are concerned."""
SPECIFICATION = "/etc/cdi/nvidia.json"
ENVIRONMENT = {"GPUSHARE_SIMULATION_DIR": DIRECTORY, "PYTHONPATH": f"{REPOSITORY}/operator"}
PROGRAMS = bin_dir()
"""The programs of a simulated MPS."""


def begin(harness: Harness) -> None:
    """The driver has as many GPUs as `up` was told when this returns."""
    count = bring.running()[1].truth["gpus"]
    if pid_of(harness, PROGRAM) is None:
        gpu = (f"--{name.replace('_', '-')}={SIMULATED_GPU[name]}" for name in ("product", "sms", "memory_mib"))
        arguments = [f"--node={NAME}", f"--gpus={count}", *gpu]
        start_in_node(harness, [sys.executable, "-m", PROGRAM, DRIVER, *arguments], ENVIRONMENT)
    driver = harness.in_node(f"{DIRECTORY}/driver.sock")
    wait_until("the simulated driver", driver.exists)
    specification = harness.in_node(SPECIFICATION)
    specification.parent.mkdir(exist_ok=True)
    specification.write_text(json.dumps(_devices(["all", *uuids(count)])))


def end(harness: Harness) -> None:
    harness.in_node(SPECIFICATION).unlink(missing_ok=True)
    if pid := pid_of(harness, PROGRAM):
        kill_if_there(harness, pid)


def uuids(count: int) -> list[str]:
    """UUIDs of that many GPUs, by their index."""
    gpu = SIMULATED_GPU
    return [made.uuid for made in make_gpus(NAME, count, gpu["product"], gpu["sms"], gpu["memory_mib"])]


def _devices(names: list[str]) -> dict[str, object]:
    """Each is the whole driver: a simulated GPU has no device node of its own."""
    mount = {"hostPath": f"{DIRECTORY}/dev", "containerPath": f"{DIRECTORY}/dev", "options": ["rw", "rbind"]}
    edits = {"env": [f"GPUSHARE_SIMULATION_DIR={DIRECTORY}"], "mounts": [mount]}
    devices = [{"name": name, "containerEdits": edits} for name in names]
    return {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
