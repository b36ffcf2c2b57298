"""One rank of a distributed training in a pod of its own; runs by its text, with the machine's PyTorch.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as for PyTorch. Prints one JSON line: the training, and the transport of
NCCL.
"""

import json
import os
import pathlib
import time
from datetime import timedelta

LOG = "/tmp/nccl.log"
STEPS, ROWS, FEATURES = 50, 256, 1024


def main():
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=LOG)
    import torch
    from torch import distributed

    distributed.init_process_group("nccl", timeout=timedelta(seconds=60), device_id=torch.device("cuda", 0))
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(1)
    model = torch.nn.Linear(FEATURES, 1).cuda()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    rows = torch.randn(ranks * ROWS, FEATURES).cuda()
    target = rows.sum(dim=1, keepdim=True)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    began = time.monotonic()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(parallel(rows[mine]), target[mine])
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    seconds = time.monotonic() - began
    total = torch.stack([weight.detach().sum() for weight in model.parameters()]).sum()
    sums = [torch.zeros_like(total) for _ in range(ranks)]
    distributed.all_gather(sums, total)
    everywhere = sorted({value.item() for value in sums})
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    distributed.destroy_process_group()
    ways = sorted(
        {line.split(" via ")[1].strip() for line in pathlib.Path(LOG).read_text().splitlines() if " via " in line}
    )
    figures = {"rank": rank, "gpu": uuid, "steps_per_second": round(STEPS / seconds, 1), "ways": ways}
    print(json.dumps({"event": "trained", **figures, "sums": everywhere, "loss": loss.item()}), flush=True)


if __name__ == "__main__":
    main()
