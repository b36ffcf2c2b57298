"""Brings the stack up on the machine, finds it for each suite, and takes it down without a trace."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localcluster.cache import contents, key_of
from localcluster.cluster import cluster
from localcluster.cluster.layout import Layout, load
from localcluster.errors import LocalClusterError
from localcluster.kubectl import CommandError
from localcluster.paths import REPOSITORY
from localcluster.stack import NAMESPACE, RELEASE, Stack, install
from measurements.gpu.stack import host_image
from measurements.gpu.stack.place import (
    CLUSTER,
    OPERATOR_ARCHIVE,
    OPERATOR_NAME,
    STATE,
    WORK,
    WORKLOAD_ARCHIVE,
    use_unpacked,
)

RECORD = WORK / "stack.json"
COMPONENTS = ("operator", "webhook", "agent", "mps", "simulated-driver")
INSTALL_SECONDS = 150
# The machine is lent: its compute modes are not ours to set.
VALUES = ("--set=computeMode=Leave",)
SIMULATED_GPU: dict[str, Any] = {"product": "NVIDIA H200", "sms": 132, "memory_mib": 143155, "driver": ""}
_TRUTH = """
import json, subprocess, cupy
device = cupy.cuda.runtime.getDeviceProperties(0)
query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits", "--id=0"]
name, nvml_mib, driver = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip().split(", ")
print(json.dumps({
    "product": name, "sms": device["multiProcessorCount"], "driver": driver,
    "memory_mib": device["totalGlobalMem"] >> 20, "nvml_memory_mib": int(nvml_mib),
    "gpus": cupy.cuda.runtime.getDeviceCount(),
}))
"""


@dataclass(frozen=True)
class Record:
    """The record of `up`. `truth`: the first GPU by the driver's own tools, before gpushare is installed, and their
    number."""

    simulated: bool
    sources: str
    operator_image: str
    workload_image: str
    truth: dict[str, Any]


def up(simulated: int) -> Record:
    """`simulated`: the number of GPUs to simulate; 0: use those of the machine. Repeated, it completes what is missing.

    Raises LocalClusterError.
    """
    programs = use_unpacked()
    record = _prepare(simulated)
    layout = cluster.up(CLUSTER, programs)
    cluster.load_images(layout, [OPERATOR_ARCHIVE, WORKLOAD_ARCHIVE])
    install(_stack(record), *VALUES, *_simulation(record), seconds=INSTALL_SECONDS)
    return record


def running() -> tuple[Stack, Record]:
    """The stack of `up`. Raises LocalClusterError if there is none."""
    use_unpacked()
    if not RECORD.exists():
        raise LocalClusterError("the stack is not up: run `measurements/gpu/run up`")
    record = Record(**json.loads(RECORD.read_text()))
    return _stack(record), record


def upgrade(*values: str) -> None:
    """Upgrades the chart to the values of `up` and further ones."""
    stack, record = running()
    install(stack, *VALUES, *_simulation(record), *values, seconds=INSTALL_SECONDS)


def down(logs: Path) -> list[str]:
    """Saves the logs and ends everything except the parts. Returns the traces that are left: it should be none."""
    use_unpacked()
    layout = load(CLUSTER)
    if CLUSTER in cluster.names_running():
        _save_logs(logs)
        uninstall(running()[0])
    cluster.down(CLUSTER)
    for path in (RECORD, WORKLOAD_ARCHIVE):
        path.unlink(missing_ok=True)
    return _left(layout)


def _prepare(simulated: int) -> Record:
    """Makes the image of the clients and reads the GPU's properties, both before gpushare takes the GPU."""
    sources = key_of(contents(REPOSITORY, (*host_image.SOURCES, *host_image.MAKERS)))
    if RECORD.exists() and WORKLOAD_ARCHIVE.exists():
        known = Record(**json.loads(RECORD.read_text()))
        same_gpus = known.truth["gpus"] == simulated if simulated else not known.simulated
        if same_gpus and known.sources == sources:
            return known
    WORK.mkdir(parents=True, exist_ok=True)
    truth = {**SIMULATED_GPU, "gpus": simulated} if simulated else _truth()
    image = host_image.build(WORKLOAD_ARCHIVE, bool(simulated))
    record = Record(bool(simulated), sources, OPERATOR_NAME.read_text(), image, truth)
    RECORD.write_text(json.dumps(asdict(record)))
    return record


def _truth() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", _TRUTH], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise LocalClusterError(f"this machine's GPU cannot be used: {done.stderr.strip()[-800:]}")
    truth: dict[str, Any] = json.loads(done.stdout)
    return truth


def _simulation(record: Record) -> list[str]:
    if not record.simulated:
        return []
    values = {"gpus": record.truth["gpus"], "sms": SIMULATED_GPU["sms"], "memoryMiB": SIMULATED_GPU["memory_mib"]}
    product = f"--set-string=simulation.product={SIMULATED_GPU['product']}"
    return [product, *(f"--set=simulation.{name}={value}" for name, value in values.items())]


def _stack(record: Record) -> Stack:
    layout = cluster.running(CLUSTER) if CLUSTER in cluster.names_running() else None
    environment = cluster.environment(layout) if layout else os.environ
    return Stack(environment, record.operator_image, record.workload_image, record.simulated, CLUSTER)


def uninstall(stack: Stack) -> None:
    """Uninstalls as a user would. If that fails, the end of the cluster removes everything anyway."""
    try:
        stack.kubectl.delete("gpushares", "--all", seconds=60)
        stack.helm(
            "uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found", "--wait", "--timeout=60s", seconds=80
        )
    except CommandError as error:
        print(f"uninstalling failed: {error}", file=sys.stderr)


def _save_logs(logs: Path) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    system = running()[0].kubectl.within(NAMESPACE)
    for part in COMPONENTS:
        try:
            text = system("logs", f"--selector=app.kubernetes.io/component={part}", "--tail=-1", "--prefix")
        except CommandError as error:
            text = str(error)
        if text.strip():
            (logs / f"stack-{part}.log").write_text(text)
    for name in ("kubelet", "containerd", "node"):
        shutil.copy(cluster.running(CLUSTER).logs / f"{name}.log", logs / f"stack-{name}.log")


def _left(layout: Layout | None) -> list[str]:
    """Traces outside of the unpacked files: the interface, the state directory, processes with its path."""
    interface = Path("/sys/class/net") / layout.network.interface if layout else None
    state = [str(path) for path in (*STATE.glob("*"), interface) if path and path.exists()]
    processes = [
        f"process {entry.parent.name}"
        for entry in Path("/proc").glob("[0-9]*/cmdline")
        if str(STATE).encode() in _bytes_of(entry)
    ]
    return state + processes


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
