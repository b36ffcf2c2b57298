"""What a process keeps of a CUDA context across a fork, which GPU it gets, and who is listed: CuPy, PyCUDA, OpenCL.

    python3 -m measurements.gpu.workload.contexts OUT.json

Needs a GPU that nobody uses, nvidia-ml-py and MPS on PATH; CuPy, PyCUDA and PyOpenCL as far as they are installed: what
is missing is said, and left out. About three minutes. Each case is a small program, in processes of its own, without
MPS and under a private daemon. Exit code 0: every case that ran was as expected.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare_workload.gpus.inventory import open_monitor
from measurements.gpu.client import Client
from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import PrivateMps

SECONDS = 90.0
CLIENTS = 4
CAPS = (100, 25)
ALL_MIB = 65536
TOUCHES = {
    "cupy": "import cupy\n    return float(cupy.arange(4).sum())",
    "pycuda": "import numpy, pycuda.autoinit, pycuda.gpuarray as on_gpu\n"
    "    return float(on_gpu.to_gpu(numpy.arange(4.0)).get().sum())",
}
"""The body of `touch`, which computes 6.0 on the GPU, in a context that its first call makes."""
FORK = """
import json, os
def touch():
    {touch}
def attempt():
    try:
        return touch()
    except BaseException as error:
        return f"{{type(error).__name__}}: {{error}}"[:300]
{before}
reading, writing = os.pipe()
child = os.fork()
if not child:
    os.write(writing, json.dumps(attempt()).encode())
    os._exit(0)
os.close(writing)
said = os.fdopen(reading).read()
os.waitpid(child, 0)
print(json.dumps({{"child": json.loads(said), "parent": attempt()}}), flush=True)
"""
INDEX = """
import cupy, json, pynvml
with cupy.cuda.Device(1):
    total = float(cupy.arange(4).sum())
pynvml.nvmlInit()
import os
devices = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
listed = [number for number, device in enumerate(devices)
          if os.getpid() in [it.pid for it in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]]
print(json.dumps({"total": total, "contexts_on": listed}), flush=True)
"""
OPENCL = """
import json, pyopencl
print(json.dumps({"devices": [d.name for p in pyopencl.get_platforms() for d in p.get_devices()]}), flush=True)
"""
HOLD = """
import cupy, json, sys
cupy.arange(4).sum()
cupy.cuda.runtime.deviceSynchronize()
print(json.dumps({"ready": True}), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class ContextCase:
    """A program that prints one JSON object, the modules that it needs, and what is expected of its answer."""

    name: str
    program: str
    needs: tuple[str, ...]
    expected: Callable[[dict[str, Any]], bool]
    gpus: int = 1
    mps: tuple[bool, ...] = (False, True)


def _forks() -> list[ContextCase]:
    cases = []
    for library, touch in TOUCHES.items():
        cases += [
            ContextCase(
                f"{library}: a context, then a fork", FORK.format(touch=touch, before="touch()"), (library,),
                lambda said: said["child"] != 6.0 and said["parent"] == 6.0,
            ),
            ContextCase(
                f"{library}: a fork, then a context in each", FORK.format(touch=touch, before=""), (library,),
                lambda said: said["child"] == said["parent"] == 6.0,
            ),
        ]  # fmt: skip
    return cases


CASES = (
    *_forks(),
    ContextCase(
        "cupy: device 1 by its index, without CUDA_VISIBLE_DEVICES", INDEX, ("cupy", "pynvml"),
        lambda said: bool(said["total"] == 6.0 and 1 in said["contexts_on"]), gpus=2, mps=(False,),
    ),
    ContextCase("opencl: the devices that it sees", OPENCL, ("pyopencl",), lambda said: "devices" in said),
)  # fmt: skip


def answer_of(program: str, environment: Mapping[str, str], seconds: float = SECONDS) -> dict[str, Any]:
    """What a program says on its last line; `error` where it fails, says nothing, or takes too long."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], env=dict(environment), capture_output=True, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {seconds:g} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"}
    return answer


def run_case(case: ContextCase, environment: Mapping[str, str], gpus: int) -> dict[str, Any]:
    """`as_expected` is None for a case that could not run: `absent` says what it lacks."""
    absent = [module for module in case.needs if importlib.util.find_spec(module) is None]
    absent += [f"{case.gpus} GPUs"] if gpus < case.gpus else []
    if absent:
        return {"absent": absent, "as_expected": None}
    answer = answer_of(case.program, environment)
    return {**answer, "as_expected": "error" not in answer and case.expected(answer)}


def listed(environment: Mapping[str, str]) -> dict[str, Any]:
    """Who is on the GPU, and with how much memory in MiB, while CLIENTS processes hold a context each."""
    clients = [Client([sys.executable, "-c", HOLD], environment) for _ in range(CLIENTS)]
    try:
        ready = [client.answer() for client in clients]
        monitor = open_monitor()
        processes = monitor.processes() if monitor else None
        query = ["nvidia-smi", "--query-compute-apps=pid,name,used_memory", "--format=csv,noheader"]
        told = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False).stdout.splitlines()
    finally:
        for client in clients:
            client.end()
    return {
        "ready": ready,
        "clients_by_nvml": list(processes.mps_clients.values()) if processes else None,
        "others_by_nvml": list(processes.others.values()) if processes else None,
        "nvidia_smi": told,
    }


def measure(gpus: int) -> dict[str, Any]:
    """Every case without MPS and under it, and who is listed: in time slices, and under MPS by each of CAPS."""
    plain = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY="/nowhere")
    cases: dict[str, dict[str, Any]] = {case.name: {} for case in CASES}
    for case in CASES:
        if False in case.mps:
            cases[case.name]["alone"] = run_case(case, plain, gpus)
    seen = {"time slices": listed(plain)}
    with tempfile.TemporaryDirectory() as name, PrivateMps(Path(name), 100, ALL_MIB) as mps:
        for case in CASES:
            if True in case.mps:
                cases[case.name]["under MPS"] = run_case(case, mps.environment, gpus)
        for percent in CAPS:
            capped = mps.environment | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
            seen[f"MPS, {percent} %"] = listed(capped)
    held = [run["as_expected"] for runs in cases.values() for run in runs.values()]
    return {"cases": cases, "listed": seen, "as_expected": False not in held}


def _gpus() -> int:
    said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False).stdout
    return len(said.splitlines())


def main(path: Path) -> int:
    measured = measure(_gpus()) | {"environment": environment_block()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(measured, indent=2) + "\n")
    print(json.dumps(measured, indent=2))
    return 0 if measured["as_expected"] else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
