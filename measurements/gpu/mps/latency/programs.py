"""Programs whose results depend on the order of their work: each prints a digest, which is the same in each run.

python3 programs.py NAME  prints {"digest": …}; 77 where its framework is not installed
"""

import hashlib
import json
import sys
from typing import Any

TURNS = 60


STEP = r"""
extern "C" __global__ void step(double* x, int n, double a) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        x[i] = x[i] * 1.0001 + a; }"""
AROUND = r"""
#include <cooperative_groups.h>
extern "C" __global__ void around(double* x, int n, int turns) {
    auto grid = cooperative_groups::this_grid();
    for (int t = 0; t < turns; t++) {
        int i = grid.thread_rank(); double v = x[(i + 1) % n]; grid.sync(); x[i] = v * 0.5 + t; grid.sync(); } }"""


def digest(*values: Any) -> str:
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()[:16]


def torch_streams() -> str:
    """A chain through the legacy stream, two others, events and a graph; each link is seen in the last digit."""
    import torch

    data = torch.arange(1 << 22, device="cuda", dtype=torch.float64)
    streams = [torch.cuda.Stream(), torch.cuda.Stream(priority=-1)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph, kept = torch.cuda.CUDAGraph(), torch.zeros_like(data)
    with torch.cuda.graph(graph, stream=side):
        kept.mul_(1.25).add_(3.0)
    torch.cuda.synchronize()
    for turn in range(TURNS):
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                data.mul_(1.0000001).add_(turn)
            torch.cuda.current_stream().wait_stream(stream)
        data.mul_(0.999).add_(1.0)
        kept.copy_(data)
        graph.replay()
        data.copy_(kept, non_blocking=True)
        data.mul_(0.7)
    return digest(data.cpu().numpy())


def torch_threads() -> str:
    """Backward launches from a thread of its own."""
    import torch

    torch.manual_seed(3)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(12))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(256, 1024, device="cuda")
    for _ in range(TURNS):
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return digest(*(parameter.detach().cpu().numpy() for parameter in model.parameters()))


def torch_compile() -> str:
    import torch

    torch.manual_seed(4)

    @torch.compile(mode="reduce-overhead")
    def step(value: Any) -> Any:
        for _ in range(6):
            value = torch.sin(value) * 1.5 + value.roll(1, 0)
        return value

    value = torch.randn(2048, 512, device="cuda")
    for _ in range(TURNS):
        value = step(value).clone() % 10
    return digest(value.cpu().numpy())


def cupy_streams() -> str:
    """The thread's own stream, streams of its own, the legacy one, and a kernel whose blocks wait for each other."""
    import cupy

    module = cupy.RawModule(code=STEP)
    step = module.get_function("step")
    around = cupy.RawModule(code=AROUND, enable_cooperative_groups=True).get_function("around")
    data = cupy.arange(132 * 2 * 256, dtype=cupy.float64)
    other, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event()
    for turn in range(TURNS):
        for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream.ptds, other):
            stream.wait_event(event)
            with stream:
                step((300,), (256,), (data, data.size, float(turn)))
                around((264,), (256,), (data, data.size, 3))
            event.record(stream)
    cupy.cuda.Device().synchronize()
    return digest(cupy.asnumpy(data))


def triton_kernel() -> str:
    global tl
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def double(data, count, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(data + at, 1.5 * tl.load(data + at, at < count) + 1, at < count)

    data = torch.ones(1 << 20, device="cuda")
    for _ in range(TURNS):
        double[(1024,)](data, 1 << 20, BLOCK=1024)
        data.remainder_(7.0)
    return digest(data.cpu().numpy())


def numba_kernel() -> str:
    import numpy
    from numba import cuda

    @cuda.jit
    def step(data, value):
        at = cuda.grid(1)
        if at < data.size:
            data[at] = data[at] * 0.5 + value

    stream = cuda.stream()
    data = cuda.to_device(numpy.arange(1 << 20, dtype=numpy.float64), stream)
    for turn in range(TURNS):
        step[4096, 256, stream](data, turn)
    host = data.copy_to_host(stream=stream)
    stream.synchronize()
    return digest(host)


def jax_step() -> str:
    import jax
    import jax.numpy as jnp
    import numpy

    @jax.jit
    def step(weights: Any, data: Any) -> Any:
        loss = lambda w: jnp.mean((jnp.tanh(data @ w) - 0.1) ** 2)  # noqa: E731
        return weights - 0.1 * jax.grad(loss)(weights)

    key = jax.random.key(0)
    weights, data = jax.random.normal(key, (512, 512)), jax.random.normal(key, (256, 512))
    for _ in range(TURNS):
        weights = step(weights, data)
    return digest(numpy.asarray(weights))


PROGRAMS = {
    "torch streams": torch_streams,
    "torch threads": torch_threads,
    "torch.compile, graphs": torch_compile,
    "CuPy streams": cupy_streams,
    "Triton": triton_kernel,
    "Numba": numba_kernel,
    "JAX": jax_step,
}

if __name__ == "__main__":
    try:
        print(json.dumps({"digest": PROGRAMS[sys.argv[1]]()}))
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(77)
