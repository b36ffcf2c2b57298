"""ddp: how does distributed data parallel fit?

Commonly claimed: several ranks of a training can run on one shared GPU. NCCL takes one rank per GPU and refuses a
second one. And a client of a share reaches exactly one GPU, since one MPS daemon serves each (measured on two H200s).
So distributed training needs whole GPUs, one rank on each; a share is for programs that fill only a part of a GPU.

What runs: PyTorch's DistributedDataParallel, one rank per GPU over NCCL. On two H200s 123,642 rows/s, on one 46,999.
Before NCCL starts, the ranks exchange the UUIDs of their GPUs, and two ranks on one GPU are refused with the reason.
The trained parameters must be those that one process reaches on all of the data. With `--device cpu` (or `--backend
numpy`) the ranks use gloo, so that the scenario can be tested without GPUs.

Needs PyTorch: `pip install 'gpushare[torch]'`, or the image that `--target workload-torch` builds.
"""

import argparse
import time

from gpushare_workload.events import JsonLines
from gpushare_workload.gpus import inventory
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import START_SECONDS, Team
from gpushare_workload.scenarios.cooperation.training import (
    COLLECTIVE_SECONDS,
    TrainingResult,
    TrainingSettings,
    find_torch,
    rank,
)
from gpushare_workload.scenarios.options import check_bounds

NAME = "ddp"
CPU_RANKS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="processes; default: one for each visible GPU, 2 on the CPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda; cpu with --backend numpy")
    parser.add_argument("--steps", type=int, default=100, help="training steps")
    parser.add_argument("--batch", type=int, default=256, metavar="ROWS", help="rows of a step for each rank")


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    check_bounds(arguments, steps=1, batch=1, **({} if arguments.ranks is None else {"ranks": 1}))
    find_torch()
    device = arguments.device or ("cpu" if arguments.backend == "numpy" else "cuda")
    if arguments.ranks is None:
        arguments.ranks = max(1, len(inventory.visible())) if device == "cuda" else CPU_RANKS
    settings = TrainingSettings(arguments.ranks, device, arguments.steps, arguments.batch, arguments.seed)
    began = time.monotonic()
    with Team(stop) as team:
        for number in range(settings.ranks):
            team.start(rank, settings, name=f"rank {number}")
        _, port = team.receive(START_SECONDS)
        for number in range(1, settings.ranks):
            team.send(number, port)
        team.go()
        ready = time.monotonic()
        ranks: list[TrainingResult] = team.results(COLLECTIVE_SECONDS + settings.steps)
    seconds = max(it.seconds for it in ranks)
    events.emit(
        "measured",
        ranks=settings.ranks,
        devices=[it.device for it in ranks],
        steps=settings.steps,
        startup_seconds=round(ready - began, 3),
        wall_seconds=round(seconds, 4),
        rows_per_second=round(settings.ranks * settings.batch * settings.steps / seconds),
        losses=[it.loss for it in ranks],
        difference_from_one_process=max(it.difference for it in ranks),
    )
