"""`gpushare operator`: decides which GPU belongs to which share. One active replica, by a Lease."""

import argparse
import asyncio
import logging
import os

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--simulation", action="store_true", help="MPS pods use simulated GPUs")
    parser.add_argument("--probe-port", type=int, default=8080, help="HTTP port of /healthz")
    parser.add_argument("--metrics-port", type=int, default=0, help="HTTP port of /metrics; 0 (default): none")


def run(args: argparse.Namespace) -> int:
    """0 after SIGTERM; 1 when the Lease was lost or a part failed, so that the pod is started again; 2: settings."""
    from gpushare.controller.handlers import run as run_operator
    from gpushare.controller.settings import SettingsError, from_environment
    from gpushare.kube.lease import LeaseLostError

    try:
        settings = from_environment(os.environ, simulation=args.simulation)
    except SettingsError as error:
        LOG.error("%s", error)
        return 2
    try:
        asyncio.run(run_operator(settings, args.probe_port, args.metrics_port))
    except LeaseLostError as error:
        LOG.error("%s; ending, so that a fresh process asks for it again", error)
        return 1
    return 0
