"""`gpushare mps-broker`: the attach broker of an MPS pod. It needs no privilege, and runs as UID 65534."""

import argparse
import logging
from functools import partial
from pathlib import Path

from gpushare.api.names import RUN_DIR
from gpushare.mps.supervisor.open_files import raise_nofile
from gpushare.process.restarts import Restarts, keep_running

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--share", required=True, help="the GpuShare whose clients may attach")
    parser.add_argument("--root", type=Path, default=Path(RUN_DIR), help=f"the GPUs' directories; default: {RUN_DIR}")


def run(args: argparse.Namespace) -> int:
    """0 after SIGTERM. The broker that ends by itself is started again."""
    remark = raise_nofile()
    if remark:
        LOG.warning("%s", remark)
    return keep_running(partial(_serve, args))


def _serve(args: argparse.Namespace, restarts: Restarts) -> int:
    """In a process of its own, which alone imports all of this."""
    from gpushare.mps.broker.broker import serve
    from gpushare.mps.clock import boot_clock
    from gpushare.process.end_signals import run_until_signal

    if run_until_signal(serve(args.root, args.share, boot_clock, restarts=restarts)):
        LOG.info("ends; clients that run go on")
    return 0
