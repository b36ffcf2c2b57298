"""Parts of several suites."""

import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.results.document import Run
from gpushare_workload.results.files import read
from localcluster.kubectl import Object
from localcluster.paths import REPOSITORY
from tests.cluster.harness import POLL, Harness, Tenant

TOLD_SECONDS = 15
LIBRARIES = f"/usr/lib/{platform.machine()}-linux-gnu"
MACHINE, TOOLKIT = "/opt/machine", "/usr/local/cuda"
OF_THE_MACHINE = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_")
"""Variables of a lent machine that must be left alone."""
PROGRAMS = REPOSITORY / "workload/examples/frameworks/programs"
STAND_IN = (
    "import json, time\n"
    "from gpushare.simulation.client import SimulatedContext\n"
    "context = SimulatedContext.create()\n"
    "while True:\n"
    "    print(json.dumps({'rate': context.sms, 'latency_ms': [2.0]}), flush=True)\n"
    "    time.sleep(0.2)\n"
)


SHARED_MEMORY = 0.88
"""The part of a GPU's memory for the slots of a share that takes all of it; the rest is for the MPS server and what
contexts take."""


def slot_mib(gpu_mib: int, slots: int) -> int:
    """The memory of each slot, so that the suites run on any product."""
    return int(SHARED_MEMORY / slots * gpu_mib)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, median, largest; in the unit of `values`, of which there is at least one."""
    return {name: round(value, 2) for name, value in Spread.of(values).as_json().items()}


def gpu_of(harness: Harness, share: str) -> str:
    """The UUID of the only GPU of a share. ValueError: it has not just one."""
    [uuid] = [daemon["uuid"] for daemon in harness.gpu_node()["status"]["daemons"] if daemon["share"] == share]
    return str(uuid)


def alive(tenant: Tenant, names: Sequence[str]) -> list[str]:
    """Those of the pods that still run in their first containers."""
    return [
        pod["metadata"]["name"]
        for pod in tenant.running()
        if pod["metadata"]["name"] in names
        and not any(container["restartCount"] for container in pod["status"]["containerStatuses"])
    ]


def errors(tenant: Tenant, names: Sequence[str]) -> list[int]:
    """The CUDA errors in the logs of these clients."""
    return sorted({line["code"] for name in names for line in tenant.events_of(name, "gpu-error")})


def ended_in_order(tenant: Tenant, name: str) -> bool:
    """Tells whether an event says that the daemon terminated the pod's client. It may come after the end of the pod."""
    end = time.monotonic() + TOLD_SECONDS
    while time.monotonic() < end:
        if "ClientTerminated" in reasons(tenant, name):
            return True
        time.sleep(POLL)
    return False


def reasons(tenant: Tenant, name: str) -> dict[str, str]:
    """Our events about a pod: reason and note of each."""
    told = tenant.kubernetes_events(name)
    return {event["reason"]: event["message"] for event in told if is_ours(event)}


def is_ours(event: dict[str, Any]) -> bool:
    """Tells whether a part of gpushare recorded the event."""
    reporter = event.get("reportingComponent") or event.get("source", {}).get("component", "")
    return str(reporter).startswith("gpushare")


def bench_runs(logs: Sequence[str]) -> Sequence[Run]:
    """The runs of one benchmark from the logs of its pods. Raises ValueError if one left no result."""
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / f"{number}.log" for number in range(len(logs))]
        for path, text in zip(paths, logs, strict=True):
            path.write_text(text)
        return read(paths).runs


def of_the_machine() -> dict[str, str]:
    """The environment of a program that uses the machine's PyTorch in a container."""
    return {
        "NCCL_NVLS_ENABLE": "0",  # a multicast that goes wrong can take GPUs of the host from all who share it
        **{name: value for name, value in os.environ.items() if name.startswith(OF_THE_MACHINE)},
        "LD_LIBRARY_PATH": ":".join([*libraries_of(Path(sysconfig.get_path("purelib"))), MACHINE]),
        "HOME": "/tmp",
        "USER": "rank",  # its UID has no name in the image, and PyTorch asks for one
    }


def libraries_of(packages: Path) -> list[str]:
    """Folders of the CUDA libraries that came with Python packages, which are in `packages`.

    The system may have others of the same names, by which a program may be slower.
    """
    return [str(folder) for folder in sorted(packages.glob("nvidia/*/lib"))]


def toolkit(path: str) -> str | None:
    """The folder of CUDA's toolkit, by its assembler on `path`, which JAX runs. In /usr/bin it is no toolkit."""
    assembler = shutil.which("ptxas", path=path)
    folder = Path(assembler).resolve().parents[1] if assembler else Path("/usr")
    return None if folder == Path("/usr") else str(folder)


def with_the_machines_libraries(pod: Object) -> None:
    """Mounts the machine's Python, its system libraries, and CUDA's toolkit where it has one, by hostPath."""
    folders = {"python": (sys.prefix, sys.prefix), "libraries": (LIBRARIES, MACHINE)}
    if toolkit_path := toolkit(f"{os.environ.get('PATH', '')}:{TOOLKIT}/bin"):
        folders["toolkit"] = (toolkit_path, TOOLKIT)
    _mount(pod, folders)


def run_program(pod: Object, program: Sequence[str]) -> None:
    """Makes the pod's container run a program of workload/examples/frameworks with the machine's PyTorch or JAX.

    `program`: its file and arguments; nothing: a stand-in that computes on a simulated GPU.
    """
    container = pod["spec"]["containers"][0]
    container.pop("args", None)  # those of the workload's own program
    if not program:
        container["command"] = [sys.executable, "-c", STAND_IN]
        return
    container["command"] = [sys.executable, str(PROGRAMS / program[0]), *program[1:]]
    container["env"] += [{"name": name, "value": value} for name, value in of_the_machine().items()]
    with_the_machines_libraries(pod)
    _mount(pod, {"programs": (str(PROGRAMS), str(PROGRAMS))})


def _mount(pod: Object, folders: Mapping[str, tuple[str, str]]) -> None:
    """Mounts by the volumes' names: the path of a folder on the machine, and the path in the container."""
    volumes = pod["spec"].setdefault("volumes", [])
    volumes += [{"name": name, "hostPath": {"path": path, "type": "Directory"}} for name, (path, _) in folders.items()]
    mounts = pod["spec"]["containers"][0].setdefault("volumeMounts", [])
    mounts += [{"name": name, "mountPath": inside, "readOnly": True} for name, (_, inside) in folders.items()]
