"""`gpushare operator`: assigns GPUs to shares. A Lease keeps one replica active."""

import argparse
import logging
import os

from gpushare.process import event_loop

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--simulation", action="store_true", help="make MPS pods that serve simulated GPUs")
    parser.add_argument("--probe-port", type=int, default=8080, help="HTTP port of /healthz")
    parser.add_argument("--metrics-port", type=int, default=0, help="HTTP port of /metrics; 0 (default): none")


def run(args: argparse.Namespace) -> int:
    """Returns 0 after SIGTERM, 1 where the Lease was lost (Kubernetes starts the pod again), 2 for wrong settings."""
    from gpushare.controller.handlers import run as run_operator
    from gpushare.controller.settings import SettingsError, from_environment
    from gpushare.kube.coordination.elector import LeaseLostError

    try:
        settings = from_environment(os.environ, simulation=args.simulation)
    except SettingsError as error:
        LOG.error("%s", error)
        return 2
    try:
        event_loop.run(run_operator(settings, args.probe_port, args.metrics_port))
    except LeaseLostError as error:
        LOG.error("%s; ending, so that a fresh process asks for it again", error)
        return 1
    return 0
