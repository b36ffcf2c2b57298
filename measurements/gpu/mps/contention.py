"""What clients of one GPU take from each other: launches, allocations, memory bandwidth, L2 cache, the host's link.

    python3 -m measurements.gpu.mps.contention OUT.json  as root on an idle GPU, MPS on PATH; a minute

One process, and four that do the same at the same moment: without MPS in time slices, and as clients of one bare MPS
daemon with a quarter of the threads and 16 GiB each, in turns. Then, whether a client reads what another has left in
memory: a client fills 1 GiB, frees it or ends, and the next one searches all memory that it can get, unwritten.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from measurements.gpu.client import Clients
from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import PrivateMps

ROUNDS = 3
TOGETHER = 4
WINDOW_SECONDS = 0.15
THREADS, MEMORY_MIB = 25, 16384
RATES = ("copy", "cached", "up", "down", "up_pageable")
"""GB/s; all other metrics are µs, but `fragmented`: a ratio."""
METRICS = ("launch", "allocate", "free", "large", "fragmented", *RATES)
PROGRAM = r"""
import json, sys, time
from statistics import median
import cupy, numpy
from cupy.cuda import runtime
WINDOW, MIB, PATTERN = float(sys.argv[1]), 1 << 20, 0xA5A5A5A5
module = cupy.RawModule(code='''
#define STEP ((long long)gridDim.x * blockDim.x)
#define EACH(i, n) for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += STEP)
extern "C" __global__ void one(float* x) { x[0] += 1.0f; }
extern "C" __global__ void copy(const float4* a, float4* b, long long n) {
    EACH(i, n) b[i] = a[i];
}
extern "C" __global__ void read(const float4* a, float4* b, long long n) {
    float sum = 0;
    EACH(i, n) sum += a[i].x + a[i].w;
    if (sum == 0.125f) b[0].x = sum;
}
extern "C" __global__ void fill(unsigned* a, long long n, unsigned pattern) {
    EACH(i, n) a[i] = pattern;
}
extern "C" __global__ void count(const unsigned* a, unsigned long long* found, long long n, unsigned pattern) {
    unsigned long long mine = 0;
    EACH(i, n) mine += a[i] == pattern;
    if (mine) atomicAdd(found, mine);
}
''')
one, copy, read, fill, count = (module.get_function(name) for name in ("one", "copy", "read", "fill", "count"))
stream = cupy.cuda.get_current_stream()
GRID = (runtime.getDeviceProperties(0)["multiProcessorCount"] * 4,), (512,)
kept = []

def timed(work):
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e6

def repeated(work):
    end, found = time.perf_counter() + WINDOW, []
    while not found or time.perf_counter() < end:
        found.append(work())
    return found

def rate(nbytes, launch):
    '''GB/s over the window.'''
    launch(); stream.synchronize()
    began, total = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < WINDOW:
        launch(); stream.synchronize()
        total += nbytes
    return total / spent / 1e9

def launch():
    x = cupy.zeros(1, dtype=cupy.float32)
    def work():
        one((1,), (1,), (x,)); stream.synchronize()
    work()
    return {"launch": median(repeated(lambda: timed(work)))}

def allocate():
    taken, freed = [], []
    def work():
        began = time.perf_counter(); pointer = runtime.malloc(MIB)
        between = time.perf_counter(); runtime.free(pointer)
        taken.append((between - began) * 1e6); freed.append((time.perf_counter() - between) * 1e6)
    repeated(work)
    return {"allocate": median(taken), "free": median(freed)}

def take_and_free(nbytes):
    began = time.perf_counter(); pointer = runtime.malloc(nbytes)
    spent = (time.perf_counter() - began) * 1e6
    runtime.free(pointer)
    return spent

def large():
    return {"large": median(repeated(lambda: take_and_free(1024 * MIB)))}

def fragmented():
    before = median(take_and_free(16 * MIB) for _ in range(10))
    pieces = [runtime.malloc(2 * MIB) for _ in range(256)]
    for piece in pieces[::2]:
        runtime.free(piece)
    after = median(take_and_free(16 * MIB) for _ in range(10))
    for piece in pieces[1::2]:
        runtime.free(piece)
    return {"fragmented": after / before}

def over_buffers(kernel, mib, launches):
    a = cupy.zeros(mib * MIB // 4, dtype=cupy.float32); b = cupy.zeros_like(a); n = mib * MIB // 16
    def work():
        for _ in range(launches):
            kernel(*GRID, (a, b, numpy.int64(n)))
    return work

def bandwidth():
    return {"copy": rate(4 * 2 * 256 * MIB, over_buffers(copy, 256, 4))}

def cached():
    return {"cached": rate(32 * 16 * MIB, over_buffers(read, 16, 32))}

def link():
    nbytes = 64 * MIB
    device, pinned = runtime.malloc(nbytes), cupy.cuda.alloc_pinned_memory(nbytes)
    pageable = numpy.zeros(nbytes, dtype=numpy.uint8)
    to, back = runtime.memcpyHostToDevice, runtime.memcpyDeviceToHost
    found = {
        "up": rate(nbytes, lambda: runtime.memcpyAsync(device, pinned.ptr, nbytes, to, stream.ptr)),
        "down": rate(nbytes, lambda: runtime.memcpyAsync(pinned.ptr, device, nbytes, back, stream.ptr)),
        "up_pageable": rate(nbytes, lambda: runtime.memcpyAsync(device, pageable.ctypes.data, nbytes, to, stream.ptr)),
    }
    runtime.free(device)
    return found

def refused():
    '''µs until an allocation of twice the grant is refused; nothing where it is not.'''
    def work():
        began = time.perf_counter()
        try:
            runtime.free(runtime.malloc(32768 * MIB))
        except runtime.CUDARuntimeError as error:
            assert error.status == 2, error
            return (time.perf_counter() - began) * 1e6
        return None
    spent = repeated(work)
    return {"refused": None if None in spent else median(spent)}

def write():
    pointer = runtime.malloc(1024 * MIB); kept.append(pointer)
    fill(*GRID, (pointer, numpy.int64(256 * MIB), numpy.uint32(PATTERN))); stream.synchronize()
    return {}

def free():
    while kept:
        runtime.free(kept.pop())
    return {}

def search():
    '''In all memory that can be had: GiB searched, and MiB found that somebody had written.'''
    found = cupy.zeros(1, dtype=cupy.uint64)
    while True:
        try:
            kept.append(runtime.malloc(1024 * MIB))
        except runtime.CUDARuntimeError:
            break
        count(*GRID, (kept[-1], found, numpy.int64(256 * MIB), numpy.uint32(PATTERN)))
    stream.synchronize()
    answer = {"gib_searched": len(kept), "mib_found": int(found[0]) * 4 / MIB}
    free()
    return answer

cupy.get_default_memory_pool().set_limit(size=0)
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    cupy.get_default_memory_pool().free_all_blocks()
    print(json.dumps(globals()[line.strip()]()), flush=True)
"""
COMMAND = (sys.executable, "-c", PROGRAM, str(WINDOW_SECONDS))
STEPS = ("launch", "allocate", "large", "fragmented", "bandwidth", "cached", "link")


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 3), "least": round(min(values), 3), "largest": round(max(values), 3)}


def jain(values: list[float]) -> float:
    """1: all have the same; 1/n: one has all. (Jain, Chiu and Hawe, 1984)"""
    return round(sum(values) ** 2 / (len(values) * sum(value**2 for value in values)), 4)


def one_round(count: int, environment: dict[str, str], *further: str) -> list[dict[str, Any]]:
    """The metrics of each process."""
    outcomes: list[dict[str, Any]] = [{} for _ in range(count)]
    with Clients(count, COMMAND, environment) as clients:
        for step in (*STEPS, *further):
            for known, answer in zip(outcomes, clients.ask(step), strict=True):
                known |= answer
    return outcomes


def summary(rounds: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Each metric over all processes and rounds; of rates the sum of all processes, and how evenly they have it."""
    figures: dict[str, Any] = {}
    for metric in METRICS:
        values = [process[metric] for processes in rounds for process in processes]
        figures[metric] = spread(values)
    for metric in RATES:
        sums = [sum(process[metric] for process in processes) for processes in rounds]
        fair = [jain([process[metric] for process in processes]) for processes in rounds]
        figures[metric] |= {"of_all": spread(sums), "jain": spread(fair)}
    if "refused" in rounds[0][0]:
        times = [process["refused"] for processes in rounds for process in processes]
        figures["refused"] = None if None in times else spread(times)
    return figures


def leftovers(environment: dict[str, str]) -> dict[str, Any]:
    """What a client finds of 1 GiB that it wrote itself, that another freed, and that another left at its end."""
    sums: dict[str, Any] = {}
    with Clients(1, COMMAND, environment) as reader:
        reader.ask("write")
        reader.ask("free")
        [sums["freed by itself"]] = reader.ask("search")
        with Clients(1, COMMAND, environment) as writer:
            writer.ask("write")
            writer.ask("free")
            [sums["freed by a client that lives"]] = reader.ask("search")
            writer.ask("write")
        [sums["of a client that has ended"]] = reader.ask("search")
    return sums


def main() -> int:
    [out] = [Path(argument) for argument in sys.argv[1:]]
    rounds: dict[str, list[list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        cached = os.environ | {"CUPY_CACHE_DIR": str(directory / "cache")}
        bare = cached | {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}
        with PrivateMps(directory, 100, 1 << 17) as mps:
            whole = cached | mps.environment
            granted = whole | {
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(THREADS),
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={MEMORY_MIB}M",
            }
            ways: dict[str, Callable[[], list[dict[str, Any]]]] = {
                "one without MPS": lambda: one_round(1, bare),
                "one under MPS": lambda: one_round(1, whole),
                "one with a grant": lambda: one_round(1, granted, "refused"),
                "four without MPS": lambda: one_round(TOGETHER, bare),
                "four with a grant": lambda: one_round(TOGETHER, granted, "refused"),
            }
            with Clients(1, COMMAND, bare):
                pass  # fills the cache of kernels
            for _ in range(ROUNDS):
                for case, measured in ways.items():
                    rounds.setdefault(case, []).append(measured())
                    print(f"{case}: {json.dumps(summary(rounds[case][-1:]))}", flush=True)
            left = leftovers(whole)
            print(f"left in memory: {json.dumps(left)}", flush=True)
    cases = {case: summary(some) for case, some in rounds.items()}
    refused = all(cases[case]["refused"] for case in ("one with a grant", "four with a grant"))
    result = {
        "suite": "contention",
        "rounds": ROUNDS,
        "window_seconds": WINDOW_SECONDS,
        "grant": {"threads": THREADS, "memory_mib": MEMORY_MIB},
        "units": {
            metric: "GB/s" if metric in RATES else "ratio" if metric == "fragmented" else "µs" for metric in METRICS
        },
        "cases": cases,
        "left in memory": left,
        "as_expected": bool(refused),
        "runs": rounds,
        "environment": environment_block(),
    }
    out.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["as_expected"] else 1


if __name__ == "__main__":
    sys.exit(main())
