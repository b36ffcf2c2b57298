"""Measures whether a client can say how long it keeps the GPU busy, and what that costs it: by records of CUPTI, under
MPS.

    python3 -m measurements.gpu.mps.busy OUT.json  as root on an idle GPU, within two minutes

Needs gcc, CuPy, libcupti (of a CUDA toolkit or a Python package) and nvidia-cuda-mps-control on PATH; without gcc, in
build/busy, libgpushare-busytime.so and client, built elsewhere by the same commands. Runs clients of known work in
turns: without the library of `busytime`, and with it, silent, always listening, and in windows as it does by itself.
The kernels write down by the GPU's own clock how long they ran, which is what the library's figure is held against. Two
clients at once, and PyTorch where it is installed, come last. Exit code 0 if windows cost less than MOST_COST_PERCENT
in each case and the figure is as true as MOST_WRONG says.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from measurements.gpu import ROOT
from measurements.gpu.client import Client
from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import PrivateMps

HERE = Path(__file__).resolve().parent
LIBRARY = HERE / "busytime/busytime.c"
BUILT = ROOT / "build/busy"
BUDGET_SECONDS = 110.0
MOST_COST_PERCENT, MOST_WRONG = 1.0, 0.05
"""Bounds: the cost in percent of the launches, and the error as a part of the time."""
REPEATS = 5
SECONDS = 0.5
"""The length of each measurement, after 50 ms that do not count."""
MODES = {"absent": 0, "silent": 0, "always": 1, "windows": 2}
"""What the library does; absent: the client that has none."""
ALL, NOT_SILENT, PAIR = tuple(MODES), ("absent", "always", "windows"), ("absent", "windows")
CASES = {
    "small, depth 1": ("1000 8 1 0", ALL),
    "small, depth 64": ("1000 8 64 0", ALL),
    "graphs of 16, depth 1": ("1000 8 1 16", ALL),
    "graphs of 16, depth 16": ("1000 8 16 16", PAIR),
    "saturating, depth 1": ("20000 1056 1 0", NOT_SILENT),
    "20 ms, depth 2": ("2000000 1056 2 0", PAIR),
}
"""Iterations, blocks of 256 threads, launches between two waits, kernels of a graph; and what is compared."""
KERNEL = """
struct Truth { unsigned long long start, end, sum, kernels; unsigned done, unused; };
__device__ unsigned long long gpu_time() {
    unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
extern "C" __global__ void spin(Truth* truth, float* data, int n) {
    if (threadIdx.x == 0) atomicMin(&truth->start, gpu_time());
    float a = threadIdx.x;
    for (int i = 0; i < n; i++) a = a * 1.0001f + 0.5f;
    if (a < 0) data[0] = a;
    __syncthreads();
    if (threadIdx.x) return;
    atomicMax(&truth->end, gpu_time());
    __threadfence();
    if (atomicAdd(&truth->done, 1) != gridDim.x - 1) return;
    unsigned long long start = atomicExch(&truth->start, ~0ull), end = atomicExch(&truth->end, 0ull);
    truth->sum += end - start;
    truth->kernels += 1;
    truth->done = 0;
}
"""
"""The last block of a kernel adds its duration. Kernels of one client run one after another."""

COMPILE = """
import sys
from cupy.cuda import nvrtc
program = nvrtc.createProgram(open(0).read(), "spin.cu", [], [])
nvrtc.compileProgram(program, ["--gpu-architecture=compute_80"])
text = nvrtc.getPTX(program)
sys.stdout.write(text.decode() if isinstance(text, bytes) else text)
"""

TORCH = """
import json, os, sys, time
import torch
torch.backends.cuda.matmul.allow_tf32 = True
layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, dropout=0)
model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).half().cuda().eval()
data = torch.randn(1, 64, 768, device="cuda", dtype=torch.half)
def rate(seconds):
    done, end = 0, time.perf_counter() + seconds
    began = time.perf_counter()
    with torch.no_grad():
        while time.perf_counter() < end:
            model(data)
            torch.cuda.synchronize()
            done += 1
    return done / (time.perf_counter() - began)
def said():
    names = [open(f"/proc/self/task/{it}/comm").read().strip() for it in os.listdir("/proc/self/task")]
    return next((int(it[7:], 16) for it in names if it.startswith("gpubusy") and it != "gpubusy-nocupti"), None)
rate(1.0)
print(json.dumps({"ready": True}), flush=True)
for line in open(0, closefd=False):
    word = line.split()
    if word[0] == "profile":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            rate(0.05)
        events = [it for it in profile.events() if it.device_type == torch.autograd.DeviceType.CUDA]
        print(json.dumps({"events": len(events), "torch": torch.__version__}), flush=True)
    else:
        before = said()
        value = rate(float(word[0]))
        after = said()
        busy = (after - before) / 100 / float(word[0]) if before is not None and after is not None else None
        print(json.dumps({"rate": value, "busy": busy}), flush=True)
"""
"""A dozen layers of a transformer, one short text at a time. Answers "0.5" with its rate and what the library says."""


def libcupti() -> str | None:
    """The newest of the machine's, or one brought along."""
    roots = [*Path("/usr/local").glob("cuda*"), *(Path(path) / "nvidia" for path in sys.path)]
    candidates = {file for root in (*roots, BUILT) for file in root.rglob("libcupti.so.1[23]")}
    return str(max(candidates, key=lambda path: path.name)) if candidates else None


def build(directory: Path) -> tuple[Path, Path, str]:
    """Library and client, and who built them."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return BUILT / "libgpushare-busytime.so", BUILT / "client", "built before"
    library, client = directory / "libgpushare-busytime.so", directory / "client"
    for options in (
        ["-shared", "-fPIC", "-fvisibility=hidden", "-o", library, LIBRARY],
        ["-o", client, HERE / "busytime/client.c"],
    ):
        subprocess.run([compiler, "-O2", *map(str, options), "-lpthread", "-ldl"], check=True, timeout=60)
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=10)
    return library, client, version.stdout.splitlines()[0]


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(median(values), 5), "least": round(min(values), 5), "most": round(max(values), 5)}


def rate(run: dict[str, Any]) -> float:
    return float(run["launches"]) / float(run["seconds"])


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures by mode: the cost against the client without the library in the same turn, and the library's figure."""
    result: dict[str, Any] = {}
    for mode in runs[0]:
        result[mode] = {
            "launches_per_second": spread([rate(run[mode]) for run in runs]),
            "truly_busy": spread([run[mode]["true_busy"] for run in runs]),
            "longest_round_ms": spread([run[mode]["longest_round_ms"] for run in runs]),
        }
        if mode != "absent":
            result[mode]["cost_percent"] = spread([100 * (1 - rate(run[mode]) / rate(run["absent"])) for run in runs])
        if MODES[mode]:
            result[mode] |= {key: spread([run[mode][key] for run in runs]) for key in ("busy", "listened")}
        if MODES[mode] and "silent" in runs[0]:
            against = [100 * (1 - rate(run[mode]) / rate(run["silent"])) for run in runs]
            result[mode]["cost_of_silent_percent"] = spread(against)
    return result


def holds(cases: dict[str, Any]) -> dict[str, bool]:
    """Tells of each case whether it holds."""
    verdicts = {}
    for name, case in cases.items():
        windows = case.get("summary", {}).get("windows")
        verdicts[name] = (
            windows is not None
            and windows["cost_percent"]["median"] < MOST_COST_PERCENT
            and abs(windows["busy"]["median"] - windows["truly_busy"]["median"]) < MOST_WRONG
        )
    return verdicts


def in_turns(plain: Client, with_library: Client, end: float) -> dict[str, Any]:
    cases: dict[str, Any] = {}
    for name, (case, modes) in CASES.items():
        runs: list[dict[str, Any]] = []
        for turn in range(REPEATS):
            if time.monotonic() > end:
                break
            order = modes[turn % len(modes) :] + modes[: turn % len(modes)]
            run: dict[str, Any] = {}
            for mode in order:
                client = plain if mode == "absent" else with_library
                client.ask(f"{case} {SECONDS} {MODES[mode]}")
                run[mode] = client.answer()
            runs.append(run)
        try:
            cases[name] = {"summary": summary(runs), "runs": runs}
        except (KeyError, IndexError, ValueError) as error:
            cases[name] = {"failed": repr(error), "runs": runs}
    return cases


def at_once(first: Client, second: Client) -> list[dict[str, Any]]:
    """Two clients side by side, each of which listens in windows: are they told apart?"""
    results = []
    for ours, theirs in (("small, depth 1", "saturating, depth 1"), ("small, depth 64", "20 ms, depth 2")):
        for client, case in ((first, ours), (second, theirs)):
            client.ask(f"{CASES[case][0]} 1.0 2")
        results.append({"first": ours, "second": theirs, "answers": [first.answer(), second.answer()]})
    return results


def in_torch(environment: dict[str, str], injected: dict[str, str]) -> dict[str, Any]:
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, timeout=60, check=False).returncode:
        return {"left_out": "no torch"}
    plain, with_library = (Client([sys.executable, "-c", TORCH], variables) for variables in (environment, injected))
    try:
        ready = [client.answer() for client in (plain, with_library)]
        if not all(answer.get("ready") for answer in ready):
            return {"failed": ready}
        runs = []
        for turn in range(2 * REPEATS):
            run = {}
            for client in (plain, with_library) if turn % 2 else (with_library, plain):
                client.ask("0.4")
                run["absent" if client is plain else "windows"] = client.answer()
            runs.append(run)
        for client in (plain, with_library):
            client.ask("profile")
        profiles = {"absent": plain.answer(), "windows": with_library.answer()}
        with_library.ask("0.4")
        cost = spread([100 * (1 - run["windows"]["rate"] / run["absent"]["rate"]) for run in runs])
        return {"cost_percent": cost, "runs": runs, "profiles": profiles, "after_profile": with_library.answer()}
    finally:
        plain.end()
        with_library.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    end = time.monotonic() + BUDGET_SECONDS
    result: dict[str, Any] = {"environment": environment_block(), "seconds_of_each": SECONDS}

    def save() -> None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as directory:
        library, client, built_by = build(Path(directory))
        cupti = libcupti()
        result |= {"built_by": built_by, "libcupti": cupti}
        save()
        if cupti is None:
            print("no libcupti.so.12 or .13 below /usr/local/cuda* or the Python packages: install nvidia-cuda-cupti")
            return 2
        kernels = Path(directory) / "spin.ptx"
        compiled = subprocess.run(
            [sys.executable, "-c", COMPILE], input=KERNEL, capture_output=True, text=True, timeout=60, check=True
        )
        kernels.write_text(compiled.stdout)
        with PrivateMps(Path(directory), threads=100, memory_mib=65536) as daemon:
            plain = daemon.environment
            injected = plain | {"CUDA_INJECTION64_PATH": str(library), "BUSYTIME_CUPTI": cupti}
            command = [str(client), str(kernels)]
            clients = [Client(command, variables) for variables in (plain, injected, injected)]
            try:
                result["ready"] = [started.answer() for started in clients]
                save()
                result["cases"] = in_turns(clients[0], clients[1], end - 20)
                result["holds"] = holds(result["cases"])
                save()
                result["at_once"] = at_once(clients[1], clients[2])
            finally:
                for started in clients:
                    started.end()
                save()
            try:
                result["torch"] = in_torch(plain, injected) if time.monotonic() < end - 5 else {"left_out": "no time"}
            except Exception as error:  # noqa: BLE001 - what was measured before has to be kept
                result["torch"] = {"failed": repr(error)}
            save()
    for name, case in result["cases"].items():
        print(name, json.dumps(case.get("summary", case.get("failed")), indent=1))
    print(json.dumps({key: result[key] for key in ("ready", "libcupti", "built_by", "at_once")}))
    print(json.dumps({key: value for key, value in result["torch"].items() if key != "runs"}))
    print(json.dumps(result["holds"]))
    return 0 if all(result["holds"].values()) else 1


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("start it as root: the MPS daemon serves several users")
    sys.exit(main())
