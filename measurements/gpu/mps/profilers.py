"""Do profilers work for clients of MPS? PyTorch's, which uses CUPTI, and nsys and ncu where they are installed.

    python3 -m measurements.gpu.mps.profilers OUT.json

Needs a GPU that nobody uses, PyTorch and nvidia-cuda-mps-control on PATH. Takes about a minute. Without MPS and
under a private MPS daemon, two processes run KERNELS kernels each at the same time, and one of them is watched:

    trace      activity records (what nsys and torch.profiler show): does it see all of its own kernels, and no others?
    counters   hardware counters of each kernel (what ncu shows): does it get them, and what do they cost its neighbour?

Exit code 0 if a trace could be taken in both. What else worked is in the file; nsys leaves its reports beside it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import PrivateMps

KERNELS, FEW_KERNELS = 200, 5
SIZE = 512
CHILD_SECONDS = 40.0
COUNTER = "smsp__inst_executed.sum"
CHILD = """
import json, sys, time, torch
from torch.profiler import profile, ProfilerActivity
what, kernels, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
a = torch.ones(size, size, device="cuda")
def work():
    began = time.monotonic()
    for _ in range(kernels):
        torch.add(a, 1.0, out=a)
    torch.cuda.synchronize()
    return (time.monotonic() - began) / kernels * 1e6
work()
found = {"plain_microseconds": work()}
if what == "neighbour":
    end = time.monotonic() + 7
    each = []
    while time.monotonic() < end:
        each.append(work())
    found["worst_microseconds"], found["rounds"] = max(each), len(each)
elif what != "unwatched":
    options = {}
    if what != "trace":
        from torch.profiler import _ExperimentalConfig
        options["experimental_config"] = _ExperimentalConfig(
            profiler_metrics=[what], profiler_measure_per_kernel=True)
    with profile(activities=[ProfilerActivity.CUDA], **options) as profiler:
        found["watched_microseconds"] = work()
    path = sys.argv[4]
    profiler.export_chrome_trace(path)
    events = json.load(open(path))["traceEvents"]
    seen = [it for it in events if it.get("cat") in ("kernel", "cuda_profiler_range")]
    found["kernels_launched"] = kernels
    found["kernels_seen"] = len([it for it in seen if it["cat"] == "kernel"])
    found["with_counters"] = len([it for it in seen if what in json.dumps(it.get("args", {}))])
    found["example"] = seen[0] if seen else None
print(json.dumps(found))
"""


def child(environment: dict[str, str], *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-c", CHILD, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        out, errors = process.communicate(timeout=CHILD_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            out, errors = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            out, errors = process.communicate()
        errors += f"took longer than {CHILD_SECONDS} s"
    lines = [line for line in out.splitlines() if line.startswith("{")]
    figures = json.loads(lines[-1]) if lines else {}
    return {"exit_code": process.returncode, **figures, "last_words": (errors or out)[-600:] if not figures else ""}


def watched_beside_another(environment: dict[str, str], what: str, directory: Path) -> dict[str, Any]:
    neighbour = child(environment, "neighbour", str(KERNELS), str(SIZE))
    watched = child(environment, what, str(KERNELS), str(SIZE), str(directory / "trace.json"))
    return {"watched": ended(watched), "neighbour": ended(neighbour)}


def tool(name: str, environment: dict[str, str], report: Path, mode: str) -> dict[str, Any]:
    """nsys and ncu where they are installed: how they end, and the last of what they print, without folders of this
    machine. `report`: of nsys.
    """
    # Of MPS, `--mps client` only starts a program, and takes neither --metrics nor --launch-count (measured).
    of_client = ("--mps", "control", "--replay-mode", "kernel") if mode == "under_mps" else ()
    quiet = ("--sample=none", "--cpuctxsw=none")  # else its report grows by 50 MB a second
    kernels = {"nsys": KERNELS, "ncu": FEW_KERNELS}[name]
    before = {
        "nsys": ("nsys", "profile", "--trace=cuda", *quiet, "--force-overwrite=true", "-o", str(report)),
        "ncu": ("ncu", *of_client, "--metrics", COUNTER),
    }[name]
    # PyTorch's own profiler would take CUPTI, which has room for one.
    process = child(environment, "unwatched", str(kernels), str(SIZE), before=before)
    try:
        out, errors = process.communicate(timeout=CHILD_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
    said = (out + errors).replace(f"{report.parent}/", "").replace(f"{tempfile.gettempdir()}/", "")
    return {"exit_code": process.returncode, "output": said[-1500:]}


def main(path: Path) -> int:
    tools = {name: shutil.which(name) for name in ("nsys", "ncu")}
    result: dict[str, Any] = {"environment": environment_block(), "installed": tools}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        bare = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY="/nowhere")
        for mode in ("without_mps", "under_mps"):
            directory = Path(name) / mode
            directory.mkdir()
            daemon = PrivateMps(directory, threads=100, memory_mib=16384) if mode == "under_mps" else None
            with daemon if daemon else tempfile.TemporaryDirectory():
                environment = daemon.environment if daemon else bare
                result[mode] = {
                    "trace": watched_beside_another(environment, "trace", directory),
                    "counters": watched_beside_another(environment, COUNTER, directory),
                    **{
                        name: tool(name, environment, path.with_name(f"{path.stem}-{mode}"), mode)
                        for name, program in tools.items()
                        if program
                    },
                }
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    print(f"{time.monotonic() - began:.0f} s in all", file=sys.stderr)
    return max(abs(int(result[mode]["trace"]["watched"]["exit_code"])) for mode in ("without_mps", "under_mps"))


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
