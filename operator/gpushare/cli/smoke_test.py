"""`gpushare smoke-test`: whether the installed parts work together. `helm test` runs it."""

import argparse
import asyncio
import logging
import os
from importlib.metadata import version

from gpushare.process import event_loop

LOG = logging.getLogger(__name__)
SECONDS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--namespace",
        default=os.environ.get("GPUSHARE_NAMESPACE", "gpushare-system"),
        help="gpushare's own; default: gpushare-system",
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0 where webhook, operator and agents work; otherwise 1, and the log says what does not."""
    problems = event_loop.run(_main(args.namespace))
    for problem in problems:
        LOG.error("%s", problem)
    if not problems:
        LOG.info("the webhook judges GpuShares, an operator is active, and every agent reports")
    return 1 if problems else 0


async def _main(namespace: str) -> list[str]:
    from gpushare.controller.chart_hooks.smoke_test import problems
    from gpushare.kube.client import connect

    kube = await connect(f"gpushare-smoke-test/{version('gpushare')}")
    try:
        async with asyncio.timeout(SECONDS):
            return await problems(kube, namespace)
    except TimeoutError:
        return [f"the API server did not answer within {SECONDS} s"]
    finally:
        await kube.close()
