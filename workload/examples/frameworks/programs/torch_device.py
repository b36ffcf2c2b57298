"""What PyTorch programs do with their device: wait for it, and choose a type that it computes quickly."""

from collections.abc import Callable

import torch


def wait(device: str) -> None:
    """Returns when the device has done everything."""
    if device == "cuda":
        torch.cuda.synchronize()


def half(device: str) -> torch.dtype:
    """float16 on a GPU; a CPU computes float32 faster."""
    return torch.float16 if device == "cuda" else torch.float32


def captured(step: Callable[[], object]) -> Callable[[], None]:
    """`step` as one CUDA graph. It runs a few times before, on a stream of its own, as capturing wants it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
