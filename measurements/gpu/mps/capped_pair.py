"""Two clients with 50 % of the threads each: when are they in each other's way?

    python3 -m measurements.gpu.mps.capped_pair OUT.json  as root on an idle GPU, MPS on PATH; a minute

Every block writes down when it began and ended, by the GPU's clock, and on which SM, as its client counts them from 0.
Kernels of several numbers of blocks run alone, and beside such kernels of another client, with caps and without.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gpushare.kubectl.rules.trial.spread import Spread
from measurements.gpu.client import Clients
from measurements.gpu.environment import environment_block
from measurements.gpu.private_mps import PrivateMps

ROUNDS = 3
WINDOW_SECONDS = 0.05
CAPS = (100, 50, 25)
BLOCKS = (33, 60, 64, 66, 132)
DEPTHS = (1, 16)
SLOWER = 1.3
"""A block is slow if it takes so many times as long as the median of its kernel."""
PROGRAM = r"""
import json, sys, time
import cupy, numpy
module = cupy.RawModule(code='''
__device__ long long now() { long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
__device__ unsigned sm() { unsigned i; asm volatile("mov.u32 %0, %%smid;" : "=r"(i)); return i; }
template <int CHAINS> __device__ void compute(int steps, float* sink) {
    float x[CHAINS];
    for (int c = 0; c < CHAINS; c++) x[c] = threadIdx.x + c;
    for (int i = 0; i < steps; i++)
        for (int c = 0; c < CHAINS; c++) x[c] = fmaf(x[c], 0.999f, 0.5f);
    for (int c = 0; c < CHAINS; c++) if (x[c] == -1.0f) *sink = x[c];
}
extern "C" __global__ void __launch_bounds__(1024, 2) work(long long* out, int fills, int steps, float* sink) {
    long long began = now();
    if (fills) compute<4>(steps, sink); else compute<1>(steps, sink);
    __syncthreads();
    if (threadIdx.x == 0) {
        out[3 * blockIdx.x] = began; out[3 * blockIdx.x + 1] = now(); out[3 * blockIdx.x + 2] = sm();
    }
}
''')
work, MOST, SLOWER = module.get_function("work"), 4096, float(sys.argv[1])
stream = cupy.cuda.Stream(non_blocking=True)
stream.use()
sink = cupy.zeros(1, dtype=cupy.float32)

def run(blocks, threads, fills, steps, depth, seconds):
    '''Rounds of `depth` kernels until the time is over; nanoseconds.'''
    out = cupy.zeros((MOST, blocks, 3), dtype=cupy.int64)
    stream.synchronize()
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end and done + depth <= MOST:
        for _ in range(depth):
            work((blocks,), (threads,), (out[done], numpy.int32(fills), numpy.int32(steps), sink))
            done += 1
        stream.synchronize()
    found = out.get()[1:done]
    began, ended, sms = found[..., 0], found[..., 1], found[..., 2]
    took = ended - began
    most = numpy.array([numpy.bincount(kernel).max() for kernel in sms])
    slow = (took > SLOWER * numpy.median(took, axis=1, keepdims=True)).sum(axis=1)
    spread = lambda values: [float(value) for value in numpy.percentile(values, (0, 10, 50, 90, 100))]
    return {
        "kernels": [began.min(axis=1).tolist(), ended.max(axis=1).tolist()],
        "block_ns": spread(took), "kernel_ns": spread(ended.max(axis=1) - began.min(axis=1)),
        "begin_spread_ns": spread(began.max(axis=1) - began.min(axis=1)),
        "sms": spread([len(set(kernel)) for kernel in sms.tolist()]), "blocks_on_one_sm": spread(most),
        "counted": len(most), "with_slow_blocks": int((slow > 0).sum()), "slow_blocks": spread(slow),
        "with_slow_blocks_and_two_on_one_sm": int(((slow > 0) & (most > 1)).sum()),
    }

run(8, 256, 1, 100, 1, 0.05); run(8, 1024, 0, 100, 1, 0.01)
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    print(json.dumps(run(**json.loads(line))), flush=True)
"""
COMMAND = (sys.executable, "-c", PROGRAM, str(SLOWER))
WORK = {
    "256 threads that leave the SM room": {"threads": 256, "fills": 0, "steps": 8192},
    "256 threads that fill the SM": {"threads": 256, "fills": 1, "steps": 6000},
    "1024 threads that fill the SM": {"threads": 1024, "fills": 1, "steps": 1500},
}
"""Kernels, by what a block is: some 25 µs each. Two blocks that fill an SM take twice as long beside each other."""


def window(answers: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """The time in which all clients ran kernels, in nanoseconds of the GPU's clock."""
    began, ended = zip(*(answer["kernels"] for answer in answers), strict=True)
    return max(each[0] for each in began), min(each[-1] for each in ended)


def rates(answers: Sequence[dict[str, Any]]) -> list[float]:
    """Kernels per second of each client within the window of all."""
    begin, end = window(answers)
    ends: list[list[int]] = [answer["kernels"][1] for answer in answers]
    return [sum(begin < moment <= end for moment in each) * 1e9 / (end - begin) for each in ends]


def overlap(answers: Sequence[dict[str, Any]]) -> float:
    """Clients with a kernel on the GPU, on average over the window."""
    begin, end = window(answers)
    spans = [
        max(0, min(end, ended) - max(begin, began))
        for answer in answers
        for began, ended in zip(*answer["kernels"], strict=True)
    ]
    return float(sum(spans) / (end - begin))


def in_each_others_way(cap: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Figures by threads of a block, depth and blocks: one alone, and two together."""
    gains: dict[str, Any] = {}
    capped = {**environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(cap)}
    with Clients(2, COMMAND, capped) as clients:
        for kind, work in WORK.items():
            for depth in DEPTHS:
                for blocks in BLOCKS:
                    line = json.dumps({"blocks": blocks, **work, "depth": depth, "seconds": WINDOW_SECONDS})
                    alone, both = clients.ask(line, of=1), clients.ask(line)
                    gains[f"{blocks} blocks of {kind}, depth {depth}"] = {
                        "alone": round(sum(rates(alone)), 1),
                        "together": [round(rate, 1) for rate in rates(both)],
                        "overlap": round(overlap(both), 3),
                        **{
                            f"{name}_{which}": answers[0][name]
                            for which, answers in (("alone", alone), ("together", both))
                            for name in answers[0].keys() - {"kernels"}
                        },
                    }
    return gains


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The work of two, in multiples of that of one alone with the same cap, case by case."""
    cases = {}
    for case in runs[0]:
        gains = [sum(run[case]["together"]) / run[case]["alone"] for run in runs]
        cases[case] = {
            "gain": Spread.of(gains).as_json(),
            "overlap": median(run[case]["overlap"] for run in runs),
        }
    return cases


def main() -> int:
    [out] = [Path(argument) for argument in sys.argv[1:]]
    runs: dict[int, list[dict[str, Any]]] = {cap: [] for cap in CAPS}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        with PrivateMps(directory, 100, 1 << 17) as mps:
            environment = {**os.environ, **mps.environment, "CUPY_CACHE_DIR": str(directory / "cache")}
            for number in range(ROUNDS):
                for cap in CAPS if number % 2 == 0 else reversed(CAPS):
                    runs[cap].append(in_each_others_way(cap, environment))
                    print(f"round {number}, {cap} %", flush=True)
    gained = {cap: summary(some) for cap, some in runs.items()}
    result = {
        "suite": "capped-pair",
        "rounds": ROUNDS,
        "window_seconds": WINDOW_SECONDS,
        "gains": gained,
        "runs": runs,
        "environment": environment_block(),
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    for cap, gains in gained.items():
        for case, gain in gains.items():
            print(f"{cap:3} %  {case:60} {gain['gain']['median']:5.2f}  overlap {gain['overlap']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
