"""The GPU that an MPS daemon serves: exactly one in this simulation."""

from collections.abc import Callable

from gpushare.simulation import paths
from gpushare.simulation.wire import Channel, Disconnected, Message, connect

DRIVER_SECONDS = 30.0


def open_gpu(visible: str | None, on_event: Callable[[Message], None]) -> Channel:
    """A connection to the GPU that `visible` (CUDA_VISIBLE_DEVICES) names first, by UUID or index; None: the first GPU.

    Raises Disconnected if there is no such GPU.
    """
    chosen = (visible or "0").split(",")[0].strip()
    for number, node in enumerate(paths.device_nodes(paths.directory())):
        try:
            channel = Channel(connect(node, DRIVER_SECONDS), on_event)
        except OSError:
            continue
        if chosen in (str(number), channel.ask({"op": "identify"})["uuid"]):
            return channel
        channel.close()
    raise Disconnected(f"no device {chosen}")
