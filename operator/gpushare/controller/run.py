"""The operator as a process: probes from the start, everything else only while the Lease is ours."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable
from importlib.metadata import version

from gpushare.controller import gather
from gpushare.controller.health import probes
from gpushare.controller.metrics import FleetSnapshot, export
from gpushare.controller.reconcile import Reconciler
from gpushare.controller.settings import OperatorSettings
from gpushare.controller.watching import watch
from gpushare.kube.client import Kube, connect
from gpushare.kube.lease import lead
from gpushare.metrics.endpoint import exposed

LOG = logging.getLogger(__name__)
LEASE = "gpushare-operator"


async def run(settings: OperatorSettings, probe_port: int, metrics_port: int) -> None:
    """Returns after SIGTERM or SIGINT; raises what ended it otherwise, LeaseLostError among it."""
    kube = await connect(f"gpushare-operator/{version('gpushare')}")
    exported, meters = export(lambda: FleetSnapshot(reconciler.leads, reconciler.reports))
    try:
        reconciler = Reconciler(kube, settings, meters)
        async with probes(probe_port, reconciler.stuck_seconds), exposed(metrics_port, exported):
            await _until_stopped(
                lead(
                    kube,
                    namespace=settings.namespace,
                    name=LEASE,
                    identity=settings.pod_name,
                    work=lambda: _work(kube, reconciler, settings),
                )
            )
    finally:
        await kube.close()


async def _until_stopped(work: Awaitable[None]) -> None:
    """Runs `work`; a signal ends it. kopf replaces these handlers once it runs and then ends the work itself."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    waiter = asyncio.create_task(stopped.wait(), name="signal")
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    if task.done() and not task.cancelled():
        task.result()


async def _work(kube: Kube, reconciler: Reconciler, settings: OperatorSettings) -> None:
    """Ends when kopf ends; an error in any part ends all."""
    reconciler.leads = True
    world = reconciler.world
    await gather.load(kube, world, settings)
    LOG.info("the fleet is known; planning starts")
    # Started before kopf, which cancels every task that is younger than itself when it ends.
    background = [
        asyncio.create_task(reconciler.run(), name="reconcile"),
        asyncio.create_task(gather.resync(kube, world, settings), name="resync"),
    ]
    if settings.certificates == "SelfSigned":
        from gpushare.controller import certificates

        background.append(asyncio.create_task(certificates.run(kube, settings), name="certificates"))
    watcher = asyncio.create_task(watch(world, settings), name="watch")
    try:
        done, _ = await asyncio.wait({watcher, *background}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
            if task is not watcher:
                raise RuntimeError(f"{task.get_name()} ended although it runs for ever")
    finally:
        for task in [watcher, *background]:
            task.cancel()
        await asyncio.gather(watcher, *background, return_exceptions=True)
