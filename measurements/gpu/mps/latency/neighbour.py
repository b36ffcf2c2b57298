"""Work beside a service, until a line comes: `run matmuls|bandwidth|training`, then any line; it prints units a second.

matmuls: bf16 products of 8192 by 8192 (1.4 ms each on an H200). bandwidth: a pass over 1 GiB, eight times. training: a
step of GPT-2 medium, bf16, 2 sequences of 512 tokens.
"""

import json
import sys
import threading
import time
from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def matmuls() -> Callable[[], None]:
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def bandwidth() -> Callable[[], None]:
    data = torch.ones(1 << 28, device="cuda")

    def passes() -> None:
        for _ in range(8):
            data.mul_(1.0)

    return passes


def training() -> Callable[[], None]:
    torch.manual_seed(2)
    config = GPT2Config(n_embd=1024, n_layer=24, n_head=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = GPT2LMHeadModel(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(0, 50000, (2, 512), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


KINDS = {"matmuls": matmuls, "bandwidth": bandwidth, "training": training}


def main() -> None:
    made: dict[str, Callable[[], None]] = {}
    for name in sys.argv[1:]:
        made[name] = KINDS[name]()
        for _ in range(3):
            made[name]()
    torch.cuda.synchronize()
    print(json.dumps({"ready": True}), flush=True)
    while line := sys.stdin.readline():
        step, ended = made[line.split()[1]], threading.Event()
        thread = threading.Thread(target=lambda ended=ended: (sys.stdin.readline(), ended.set()))
        thread.start()
        done, began, process = 0, time.perf_counter(), time.process_time()
        while not ended.is_set():
            step()
            done += 1
            if done % 4 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        cpu = (time.process_time() - process) / seconds
        print(json.dumps({"per_second": done / seconds, "seconds": seconds, "cpu": cpu}), flush=True)
        thread.join()


if __name__ == "__main__":
    main()
