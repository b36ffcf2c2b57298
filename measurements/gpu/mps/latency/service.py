"""A service: BERT-base as a CUDA graph, one request of 128 tokens at a time. Answers commands with a line of JSON each.

`capacity`: requests per second, one after the other. `load RATE REQUESTS SEED [ON OFF]`: Poisson arrivals, open loop,
`ON` seconds on and `OFF` seconds off; latency is from a request's arrival to its end, whatever waits before it.
"""

import json
import random
import sys
import time
from typing import Any

import torch
from transformers import BertConfig, BertModel


def build() -> Any:
    torch.manual_seed(1)
    model = BertModel(BertConfig()).half().cuda().eval()
    tokens = torch.randint(0, 30000, (1, 128), device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            model(tokens)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(tokens)
    return model, tokens, graph


def arrivals(rate: float, requests: int, seed: int, on: float, off: float) -> list[float]:
    source, times, at = random.Random(seed), [], 0.0
    for _ in range(requests):
        at += source.expovariate(rate)
        times.append(at + (at // on) * off if on else at)
    return times


def load(graph: Any, rate: float, requests: int, seed: int, on: float = 0, off: float = 0) -> dict[str, Any]:
    stream, times = torch.cuda.current_stream(), arrivals(rate, requests, seed, on, off)
    latencies, began = [], time.perf_counter()
    for at in times:
        while (left := began + at - time.perf_counter()) > 0:
            if left > 0.0003:
                time.sleep(left - 0.0002)
        graph.replay()
        stream.synchronize()
        latencies.append(time.perf_counter() - began - at)
        if latencies[-1] > 8:
            break  # it does not keep up
    latencies_ms, seconds = sorted(1000 * latency for latency in latencies), time.perf_counter() - began
    part = {f"p{name}_ms": latencies_ms[min(len(latencies_ms) - 1, int(len(latencies_ms) * share))] for name, share in
            (("50", 0.5), ("95", 0.95), ("99", 0.99), ("99.9", 0.999))}  # fmt: skip
    return {
        "requests": len(latencies),
        "offered_per_second": rate,
        "served_per_second": len(latencies) / seconds,
        **part,
    }


def main() -> None:
    _, _, graph = build()
    stream = torch.cuda.current_stream()
    for _ in range(50):
        graph.replay()
    stream.synchronize()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        if name == "capacity":
            began, done = time.perf_counter(), 0
            while time.perf_counter() < began + 1.5:
                graph.replay()
                stream.synchronize()
                done += 1
            print(json.dumps({"per_second": done / (time.perf_counter() - began)}), flush=True)
        else:
            rate, requests, seed, *burst = map(float, arguments)
            print(json.dumps(load(graph, rate, int(requests), int(seed), *burst)), flush=True)


if __name__ == "__main__":
    main()
