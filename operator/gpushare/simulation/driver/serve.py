"""`gpushare simulated-driver`, once its GPUs are known: puts up the sockets and serves them.

A context lives as long as the connection that opened it: the end of the process is the end of the context. What that
does to the neighbours is decided in `failure_outcome`. State is in memory alone, so a restart of this process is the
reload of a driver: all contexts are gone and all compute modes are Default again.
"""

import logging
import signal
from collections.abc import Callable
from pathlib import Path

from gpushare.simulation import paths
from gpushare.simulation.driver.admin import AdminConnection
from gpushare.simulation.driver.device import Device
from gpushare.simulation.driver.loop import DriverLoop
from gpushare.simulation.driver.state import DriverState

log = logging.getLogger(__name__)


def serve(state: DriverState, base: str, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT, and remove the sockets then. Calls `ready` once all sockets listen."""
    loop = DriverLoop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    directory = Path(base)
    (directory / "dev").mkdir(parents=True, exist_ok=True)
    sockets = [paths.driver_socket(base), *(paths.device_node(base, gpu.minor) for gpu in state.gpus)]
    for stale in set(paths.device_nodes(base)) - set(sockets):
        Path(stale).unlink()
    loop.listen(sockets[0], 0o600, lambda sock: AdminConnection(loop, sock, state))
    for gpu, path in zip(state.gpus, sockets[1:], strict=True):
        loop.listen(path, 0o666, Device(loop, state, gpu).accept)
    log.info("simulated driver %s: %d GPUs in %s", state.driver_version, len(state.gpus), base)
    ready()
    try:
        loop.run()
    finally:
        for path in sockets:
            Path(path).unlink(missing_ok=True)
