"""`gpushare mps-broker`: the attach broker of an MPS pod. It is started as root, and becomes its own user at once."""

import argparse
import logging
from functools import partial
from pathlib import Path

from gpushare.api.names import RUN_DIR
from gpushare.mps.layout import BROKER_GROUP
from gpushare.process import users
from gpushare.process.open_files import raise_nofile
from gpushare.process.restarts import Restarts, keep_running

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--share", required=True, help="the GpuShare whose clients may attach")
    parser.add_argument("--root", type=Path, default=Path(RUN_DIR), help=f"the GPUs' directories; default: {RUN_DIR}")


def run(args: argparse.Namespace) -> int:
    """0 after SIGTERM, 1 where it cannot become the broker's user. The broker that ends by itself is started again."""
    try:
        exempt = users.become_broker([BROKER_GROUP])  # before all else: the MPS daemon obeys UID 0
    except OSError as error:
        LOG.error(
            "the broker cannot become UID %d (%s): its container has to start as UID 0 with the capabilities"
            " SYS_RESOURCE, SETUID and SETGID, as the operator makes it",
            users.BROKER,
            error,
        )
        return 1
    if not exempt:
        LOG.warning(
            "without CAP_SYS_RESOURCE: a pod that has many descriptors under way can keep clients from attaching"
        )
    remark = raise_nofile()
    if remark:
        LOG.warning("%s", remark)
    return keep_running(partial(_serve, args))


def _serve(args: argparse.Namespace, restarts: Restarts) -> int:
    """In a process of its own, which alone imports all of this."""
    from gpushare.mps.broker.broker import BrokerSettings, serve
    from gpushare.mps.clock import boot_clock
    from gpushare.process.event_loop import run_until_signal

    if run_until_signal(serve(args.root, BrokerSettings(args.share, boot_clock, restarts=restarts))):
        LOG.info("ends; clients that run go on")
    return 0
