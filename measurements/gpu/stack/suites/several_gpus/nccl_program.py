"""All-reduce and training over all GPUs of a container, a process for each; runs by its text.

Prints one JSON line: what the processes measured, and the transport of NCCL. With a rank it is one of them.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

MIB, ROUNDS, STEPS = 256, 20, 30
PORT = "29511"


def rank_main(rank, ranks, log):
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=log, MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
    import torch
    from torch import distributed

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    distributed.init_process_group("nccl", timeout=timedelta(seconds=60), device_id=device, rank=rank, world_size=ranks)
    data = torch.ones(MIB << 18, device=device)
    seconds = timed(torch, ROUNDS, lambda: distributed.all_reduce(data, distributed.ReduceOp.AVG))
    right = bool((data == 1).all())
    torch.manual_seed(1)
    layers = [torch.nn.Linear(4096, 4096) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = torch.randn(1024, 4096, device=device)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(rows), rows).backward()
        optimizer.step()

    steps = STEPS / timed(torch, STEPS, step)
    total = torch.stack([weight.detach().sum() for weight in model.parameters()]).sum()
    sums = [torch.zeros_like(total) for _ in range(ranks)]
    distributed.all_gather(sums, total)
    uuid = f"GPU-{torch.cuda.get_device_properties(rank).uuid}"
    distributed.destroy_process_group()
    bus = ROUNDS * (MIB << 20) / seconds * 2 * (ranks - 1) / ranks
    return {
        "gpu": uuid,
        "sees": torch.cuda.device_count(),
        "all_reduce_gb_per_second": round(bus / 1e9, 1),
        "all_reduce_right": right,
        "training_steps_per_second": round(steps, 1),
        "sums": sorted({value.item() for value in sums}),
    }


def timed(torch, rounds, work):
    for _ in range(5):
        work()
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(rounds):
        work()
    torch.cuda.synchronize()
    return time.monotonic() - began


def main(text):
    if len(sys.argv) > 1:
        rank, ranks, log = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
        print(json.dumps(rank_main(rank, ranks, log)), flush=True)
        return
    import torch

    ranks = torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as folder:
        logs = [f"{folder}/{rank}.log" for rank in range(ranks)]
        started = [
            subprocess.Popen(
                [sys.executable, "-c", text, str(rank), str(ranks), log], stdout=subprocess.PIPE, text=True
            )
            for rank, log in enumerate(logs)
        ]
        figures = [json.loads(process.communicate(timeout=100)[0].strip().splitlines()[-1]) for process in started]
        lines = [line for log in logs for line in pathlib.Path(log).read_text().splitlines()]
    ways = sorted({line.split(" via ")[1].split()[0].strip() for line in lines if " via " in line})
    mps = sorted(name for name in os.environ if name.startswith("CUDA_MPS"))
    print(json.dumps({"event": "trained", "ranks": figures, "ways": ways, "mps_variables": mps}), flush=True)


if __name__ == "__main__":
    main(os.environ["PROGRAM"])
