"""ddp: how does distributed data parallel fit?

Commonly claimed: run several ranks of a training on one shared GPU. NCCL takes one rank per GPU and refuses a second
one. And a client of a share reaches exactly one GPU, since one MPS daemon serves each (measured on two H200s). So
distributed training wants whole GPUs, one rank on each; a share is for what fills only a part of one.

PyTorch's DistributedDataParallel, one rank per GPU over NCCL. On two H200s 123,642 rows/s, on one
46,999. Before NCCL is started the ranks tell each other their
GPU's UUID, and two on one GPU are told as what they are. The trained parameters must be those that one process reaches
on all of the data. With `--device cpu` (or `--backend numpy`) it runs over gloo, to be tested without GPUs.

Needs PyTorch: `pip install 'gpushare[torch]'`, or the image that `--target workload-torch` builds.
"""

import argparse
import time

from gpushare_workload import inventory
from gpushare_workload.bounds import at_least
from gpushare_workload.report import Report
from gpushare_workload.stopping import Stop
from gpushare_workload.training import SECONDS, Course, Trained, find_torch, rank
from gpushare_workload.workers import START_SECONDS, Team

NAME = "ddp"
CPU_RANKS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="processes; default: one for each visible GPU, 2 on the CPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda; cpu with --backend numpy")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256, metavar="ROWS", help="for each rank")


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    at_least(arguments, steps=1, batch=1)
    find_torch()
    device = arguments.device or ("cpu" if arguments.backend == "numpy" else "cuda")
    if arguments.ranks is None:
        arguments.ranks = max(1, len(inventory.visible())) if device == "cuda" else CPU_RANKS
    at_least(arguments, ranks=1)
    course = Course(arguments.ranks, device, arguments.steps, arguments.batch, arguments.seed)
    began = time.monotonic()
    with Team(stop) as team:
        for number in range(course.ranks):
            team.start(rank, course, name=f"rank {number}")
        _, port = team.receive(START_SECONDS)
        for number in range(1, course.ranks):
            team.send(number, port)
        team.go()
        ready = time.monotonic()
        ranks: list[Trained] = team.results(SECONDS + course.steps)
    seconds = max(it.seconds for it in ranks)
    report.emit(
        "measured",
        ranks=course.ranks,
        devices=[it.device for it in ranks],
        steps=course.steps,
        startup_seconds=round(ready - began, 3),
        wall_seconds=round(seconds, 4),
        rows_per_second=round(course.ranks * course.batch * course.steps / seconds),
        losses=[it.loss for it in ranks],
        difference_from_one_process=max(it.difference for it in ranks),
    )
