"""`gpushare uninstall`: deletes all GpuShares and waits until their clients have ended, before `helm uninstall`.

The chart runs it where its value uninstall.shares is Delete.
"""

import argparse
import logging
from importlib.metadata import version

from gpushare.process import event_loop

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=int, default=240, help="seconds to wait for GpuShares and MPS daemons to end; default: 240"
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0 where no node has anything of gpushare any more; otherwise 1, and the log says what to do."""
    why = event_loop.run(_main(args))
    if why is None:
        LOG.info("no GpuShare and no MPS daemon is left: gpushare may be uninstalled")
        return 0
    LOG.error("%s", why)
    return 1


async def _main(args: argparse.Namespace) -> str | None:
    from gpushare.controller.chart_hooks.uninstall import delete_shares
    from gpushare.kube.client import connect

    kube = await connect(f"gpushare-uninstall/{version('gpushare')}")
    try:
        return await delete_shares(kube, seconds=args.timeout)
    finally:
        await kube.close()
