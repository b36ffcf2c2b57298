"""ddp: how does distributed data parallel fit?

Commonly claimed: several ranks of a training can run on one shared GPU. NCCL takes one rank per GPU and refuses a
second one. And a client of a share reaches exactly one GPU, since one MPS daemon serves each (docs/limits.md).
So distributed training needs whole GPUs, one rank on each; a share is for programs that fill only a part of a GPU.

What runs: PyTorch's DistributedDataParallel, one rank per GPU over NCCL: `--warmup` steps, then `--repeats` times
`--steps` that count. Before NCCL starts, the ranks exchange the UUIDs of their GPUs, and two ranks on one GPU are
refused with the reason. The trained parameters must be those that one process reaches on all of the data. With
`--device cpu` (or `--backend numpy`) the ranks use gloo, so that the scenario can be tested without GPUs.

Needs PyTorch: `pip install 'gpushare[torch]'`, or the image that `--target workload-torch` builds.
"""

import argparse
import time

from gpushare_workload.events import JsonLines
from gpushare_workload.gpus import inventory
from gpushare_workload.gpus.utilisation import GpuWatch
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
from gpushare_workload.scenarios.repeats import summarised

NAME = "ddp"
CPU_RANKS = 2
DEFAULT_SIZES = {"cuda": (4096, 4096), "cpu": (256, 64)}
"""Rows for each rank, and width of the model: enough to keep a GPU busy, little enough for a CPU."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="processes; default: one for each visible GPU, 2 on the CPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda; cpu with --backend numpy")
    parser.add_argument("--steps", type=int, default=50, help="training steps of each repeat")
    parser.add_argument(
        "--warmup", type=int, default=10, metavar="STEPS", help="training steps before the first repeat"
    )
    parser.add_argument("--repeats", type=int, default=3, help="the figures are medians of this many repeats")
    parser.add_argument("--batch", type=int, metavar="ROWS", help="rows of a step for each rank (cuda: 4096, cpu: 256)")
    parser.add_argument("--width", type=int, help="width of the model's layers (cuda: 4096, cpu: 64)")


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    given = {name: 1 for name in ("ranks", "batch", "width") if getattr(arguments, name) is not None}
    check_bounds(arguments, steps=1, warmup=0, repeats=1, **given)
    find_torch()
    device = arguments.device or ("cpu" if arguments.backend == "numpy" else "cuda")
    batch, width = DEFAULT_SIZES[device]
    if arguments.ranks is None:
        arguments.ranks = max(1, len(inventory.visible())) if device == "cuda" else CPU_RANKS
    settings = TrainingSettings(
        ranks=arguments.ranks,
        device=device,
        steps=arguments.steps,
        warmup=arguments.warmup,
        repeats=arguments.repeats,
        batch=arguments.batch or batch,
        width=arguments.width or width,
        seed=arguments.seed,
    )
    began = time.monotonic()
    with Team(stop) as team:
        for number in range(settings.ranks):
            team.start(rank, settings, name=f"rank {number}")
        _, port = team.receive(START_SECONDS)
        for number in range(1, settings.ranks):
            team.send(number, port)
        team.go()
        ready = time.monotonic()
        with GpuWatch() as seen:
            ranks: list[TrainingResult] = team.results(COLLECTIVE_SECONDS + settings.all_steps)
    slowest = [max(seconds) for seconds in zip(*(rank.seconds for rank in ranks), strict=True)]
    rows = settings.ranks * settings.batch * settings.steps
    events.emit(
        "measured",
        ranks=settings.ranks,
        devices=[rank.device for rank in ranks],
        steps=settings.steps,
        rows_of_each_rank=settings.batch,
        parameters=ranks[0].parameters,
        startup_seconds=round(ready - began, 3),
        **summarised([{"wall_seconds": seconds, "rows_per_second": rows / seconds} for seconds in slowest]),
        first_gpu_busy_percent=seen.busy_percent,
        losses=[rank.loss for rank in ranks],
        difference_from_one_process=max(rank.difference for rank in ranks),
    )
