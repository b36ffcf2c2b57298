"""Programs that see their grant as the GPU's memory, on a real GPU: what each sees, whether it fits, and what it costs.

    python3 -m measurements.gpu.mps.shown_memory OUT.json [FRONTS]  on an idle GPU, MPS on PATH; 3 min

The front libraries are built with this machine's C compiler, or FRONTS is a directory that has them (native/build.sh
makes it on another machine). Clients of a private MPS daemon find them by LD_LIBRARY_PATH, in the place of the CDI
spec's mounts; the driver's own libraries lie beside them, as in a container. A framework that is not installed is
listed as such. Ends all that it started. OUT.json has what was seen and whether it was as expected, such as
measurements/results/h200/shown-memory.json.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from gpushare.agent.gpus import driver
from gpushare.agent.gpus.fronts import SONAMES
from gpushare.api.names import FRONT_PREFIX
from gpushare.grant.environment import client_environment
from gpushare.grant.model import Grant
from measurements.gpu import ROOT
from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import PrivateMps

MEMORY_MIB = 16384
PAIRS, RATE_SECONDS = 8, 1.0
DEPTHS = (1, 64)
PROGRAM_SECONDS = 300
NOT_INSTALLED = 77
"""Exit code of a program whose framework is not there."""
ROOMY = 0.98
"""A program may have this part of what it sees: the context is paid from the grant, too."""

IMPORT = """
import json, sys
try:
    import {module}
except ImportError as error:
    sys.exit(77)
"""
PROGRAMS = {
    "cuda": """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
free, total, whole = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
assert not (cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0))
assert not cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
assert not cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
assert not cuda.cuDeviceTotalMem_v2(ctypes.byref(whole), device)
size = int(0.9 * total.value)
fits = cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size)) == 0
left = ctypes.c_size_t()
assert not cuda.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total))
print(json.dumps({"total": total.value, "whole": whole.value, "free": free.value, "fits": fits, "left": left.value}))
""",
    "torch at 0.9": IMPORT.format(module="torch")
    + """
torch.cuda.set_per_process_memory_fraction(0.9)
free, total = torch.cuda.mem_get_info()
whole = torch.cuda.get_device_properties(0).total_memory
block, blocks = 64 << 20, []
while (len(blocks) + 1) * block <= 0.88 * total:
    blocks.append(torch.empty(block, dtype=torch.uint8, device="cuda"))
one = torch.ones(1024, 1024, device="cuda")
fits = float((one @ one).sum()) == 1024.0 ** 3
print(json.dumps({"total": total, "whole": whole, "free": free, "fits": fits, "left": torch.cuda.mem_get_info()[0]}))
""",
    "jax preallocates": IMPORT.format(module="jax")
    + """
import jax.numpy as jnp
value = float(jnp.ones((1024, 1024)).sum())
stats = jax.local_devices()[0].memory_stats()
print(json.dumps({"total": None, "pool": stats["bytes_limit"], "fits": value == 1024.0 ** 2}))
""",
    "cupy": IMPORT.format(module="cupy")
    + """
free, total = cupy.cuda.runtime.memGetInfo()
whole = cupy.cuda.runtime.getDeviceProperties(0)["totalGlobalMem"]
cupy.get_default_memory_pool().set_limit(fraction=0.9)
pool = cupy.get_default_memory_pool().get_limit()
data = cupy.zeros(int(0.85 * total), dtype=cupy.uint8)
fits = int(data[:1000].sum()) == 0
print(json.dumps({"total": total, "whole": whole, "free": free, "pool": pool, "fits": fits}))
""",
    "triton": IMPORT.format(module="triton")
    + """
import tempfile, torch, triton.language as tl
from pathlib import Path
source = '''
import triton, triton.language as tl
@triton.jit
def double(data, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(data + at, 2 * tl.load(data + at, at < count), at < count)
'''
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "kernel.py"
    path.write_text(source)
    sys.path.insert(0, folder)
    import kernel
    data = torch.ones(1000, device="cuda")
    kernel.double[(1,)](data, 1000, BLOCK=1024)
    fits = float(data.sum()) == 2000.0
print(json.dumps({"total": torch.cuda.mem_get_info()[1], "fits": fits}))
""",
    "nvml": IMPORT.format(module="pynvml")
    + """
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
one, two = pynvml.nvmlDeviceGetMemoryInfo(device), pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
fits = one.total == one.free + one.used and (one.total, one.free) == (two.total, two.free)
print(json.dumps({"total": one.total, "free": one.free, "used": one.used, "fits": fits}))
""",
}
"""Programs, by name, that print what they see: `total`, and `whole` by another way, in bytes, and whether it `fits`."""

RATE = """
import ctypes, json, sys, time
sys.path.insert(0, sys.argv[1])
from tests.contract.cuda_client import Cuda
seconds, cuda, found = float(sys.argv[2]), Cuda(), {}
cuda.create()
for depth in map(int, sys.argv[3:]):
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(depth):
            cuda.launch("spin")
        cuda.synchronize()
        done += depth
    found[f"launches per second at depth {depth}"] = done / seconds
free, total = ctypes.c_size_t(), ctypes.c_size_t()
ask = ctypes.CDLL("libcuda.so.1").cuMemGetInfo_v2
done, began = 0, time.perf_counter()
while time.perf_counter() < began + seconds:
    ask(ctypes.byref(free), ctypes.byref(total))
    done += 1
found["microseconds of cuMemGetInfo"] = (time.perf_counter() - began) / done * 1e6
print(json.dumps(found))
"""


def container(directory: Path, fronts: Path | None) -> Path:
    """The libraries as a container has them. Raises RuntimeError where this machine has no driver."""
    libraries = driver.find("/", Path("/")).libraries
    if any(soname not in libraries for soname in SONAMES):
        raise RuntimeError(f"of {', '.join(SONAMES)} some are not below /: {sorted(libraries)}")
    directory.mkdir()
    if fronts is None:
        build = ROOT / "native/build.sh"
        subprocess.run([build, directory], check=True, timeout=120)
    for soname in SONAMES:
        if fronts is not None:
            shutil.copy(fronts / soname, directory / soname)
        (directory / f"{FRONT_PREFIX}{soname}").symlink_to(libraries[soname])
    return directory


def gpu_uuid() -> str:
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader", "--id=0"]
    return subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def run(program: str, environment: dict[str, str], *arguments: object) -> dict[str, Any]:
    """What it prints, or `error`."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PROGRAM_SECONDS)
    if done.returncode == NOT_INSTALLED:
        return {"error": "not installed"}
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or [str(done.returncode)])[-1][:500]}
    seen: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return seen


def judged(seen: dict[str, Any], total: int) -> dict[str, Any]:
    """The row with `as_expected`, which is None where the program could not be run."""
    if seen.get("error") == "not installed":
        return seen | {"as_expected": None}
    shown = [seen[key] for key in ("total", "whole") if seen.get(key) is not None]
    below = all(seen.get(key, 0) <= ROOMY * total for key in ("pool",))
    return seen | {"as_expected": bool(seen.get("fits")) and all(value == total for value in shown) and below}


def nvidia_smi(environment: dict[str, str], total_mib: int) -> dict[str, Any]:
    query = [
        "nvidia-smi",
        "--query-gpu=memory.total,memory.used,memory.free",
        "--format=csv,noheader,nounits",
        "--id=0",
    ]
    done = subprocess.run(query, capture_output=True, text=True, env=environment, timeout=60)
    if done.returncode != 0:
        return {"error": done.stdout + done.stderr, "as_expected": False}
    total, used, free = map(int, done.stdout.split(","))
    return {"total_mib": total, "used_mib": used, "free_mib": free, "as_expected": total == total_mib}


def costs(plain: dict[str, str], shown: dict[str, str]) -> dict[str, Any]:
    """Figures of pairs of runs, without and with the front libraries in turns, and the ratio of each pair."""
    pairs = []
    for number in range(PAIRS):
        ways = (plain, shown) if number % 2 == 0 else (shown, plain)
        rates = [run(RATE, environment, ROOT, RATE_SECONDS, *DEPTHS) for environment in ways]
        pairs.append(tuple(rates) if number % 2 == 0 else tuple(reversed(rates)))
    result: dict[str, Any] = {"pairs": len(pairs), "seconds_each": RATE_SECONDS}
    for name in pairs[0][0]:
        result[name] = {
            "without": spread([before[name] for before, _ in pairs]),
            "with": spread([after[name] for _, after in pairs]),
            "ratio": spread([after[name] / before[name] for before, after in pairs]),
        }
    return result


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 4), "min": round(min(values), 4), "max": round(max(values), 4)}


def main() -> int:
    out, fronts = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    result: dict[str, Any] = {"environment": environment_block(), "grant_mib": MEMORY_MIB}
    with tempfile.TemporaryDirectory() as scratch:
        libraries = container(Path(scratch) / "libraries", fronts)
        with PrivateMps(Path(scratch), threads=100, memory_mib=2 * MEMORY_MIB) as mps:
            grant = client_environment(Grant("bench", 100, MEMORY_MIB, 1), None)
            kept = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
            plain = mps.environment | {name: value for name, value in grant.items() if name not in kept}
            search_path = f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
            shown = plain | {"LD_LIBRARY_PATH": search_path, "GPUSHARE_GPU": gpu_uuid()}
            result["programs"] = {
                name: judged(run(program, shown), MEMORY_MIB << 20) for name, program in PROGRAMS.items()
            }
            result["nvidia-smi"] = nvidia_smi(shown, MEMORY_MIB)
            result["without the libraries"] = run(PROGRAMS["cuda"], plain)
            out.write_text(json.dumps(result, indent=1) + "\n")
            result["costs"] = costs(plain, shown)
    out.write_text(json.dumps(result, indent=1) + "\n")
    wrong = [name for name, seen in result["programs"].items() if seen["as_expected"] is False]
    wrong += [] if result["nvidia-smi"]["as_expected"] else ["nvidia-smi"]
    print("all as expected" if not wrong else f"not as expected: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
