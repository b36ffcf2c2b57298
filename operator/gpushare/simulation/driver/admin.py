"""driver.sock: answers NVML, and lets tests cause accidents. Root alone may connect (mode 0600)."""

import socket
import time
from collections.abc import Callable

from gpushare.simulation.cuda_errors import UNKNOWN
from gpushare.simulation.driver.gpu import DriverComputeMode, Kind, SimulatedGpu
from gpushare.simulation.driver.loop import Connection, DriverLoop
from gpushare.simulation.driver.state import DriverState
from gpushare.simulation.limits import MIB
from gpushare.simulation.wire import Message


class AdminConnection(Connection):
    """NVML: info, gpus, compute_mode, set_compute_mode, processes, utilization.

    Tests: lose, recover (a GPU falls off the bus, and is back after a reset), wedge, unwedge (NVML gets no answer about
    a GPU), garble, ungarble (NVML describes a GPU no more), exchange (another card in its place), add_process,
    remove_process (a process without MPS), kernels (running ones), xids, set_delays.
    An answer with `refused` carries NVML's error text; `lost` means that the GPU is gone.
    """

    def __init__(self, loop: DriverLoop, sock: socket.socket, state: DriverState) -> None:
        super().__init__(loop, sock)
        self.state = state
        self._driver: dict[str, Callable[[Message], Message | None]] = {
            "info": self._info,
            "gpus": self._gpus,
            "xids": lambda _: {"xids": self.state.xids, "total": self.state.xids_total},
            "set_delays": self._set_delays,
        }
        self._gpu: dict[str, Callable[[SimulatedGpu, Message], Message | None]] = {
            "compute_mode": lambda gpu, _: {"mode": gpu.mode.value},
            "set_compute_mode": self._set_compute_mode,
            "processes": lambda gpu, _: {**processes(gpu), "free_mib": gpu.free() // MIB},
            "utilization": lambda gpu, _: {"percent": gpu.utilization(time.monotonic())},
            "kernels": lambda gpu, _: kernels(gpu),
            "lose": self._lose,
            "recover": self._recover,
            "wedge": self._wedge,
            "unwedge": self._unwedge,
            "garble": self._garble,
            "ungarble": self._ungarble,
            "exchange": self._exchange,
            "add_process": self._add_process,
            "remove_process": self._remove_process,
        }

    def handle(self, message: Message) -> Message | None:
        operation = message["op"]
        if operation in self._driver:
            return self._driver[operation](message)
        gpu = self.state.gpu(message["uuid"])
        if gpu is None:
            return {"refused": "Not Found"}
        if gpu.uuid in self.state.wedged and operation != "unwedge":
            return None
        if gpu.lost and operation != "recover":
            return {"refused": "GPU is lost", "lost": True}
        if gpu.uuid in self.state.garbled and operation != "ungarble":
            return {"refused": "Unknown Error"}
        return self._gpu[operation](gpu, message)

    def _info(self, _: Message) -> Message:
        return {"driver_version": self.state.driver_version, "cuda_version": self.state.cuda_version}

    def _gpus(self, _: Message) -> Message | None:
        if self.state.wedged:
            return None
        return {
            "nvlinks": self.state.nvlinks(),
            "gpus": [
                {
                    "uuid": gpu.uuid,
                    "index": gpu.index,
                    "minor": gpu.minor,
                    "product": gpu.product,
                    "memory_mib": gpu.memory_mib,
                    "sms": gpu.sms,
                }
                for gpu in self.state.gpus
                if not gpu.lost and gpu.uuid not in self.state.garbled
            ],
            "unreadable": [
                f"NVML does not describe GPU {gpu.index}, so it is left out: Unknown Error"
                for gpu in self.state.gpus
                if gpu.uuid in self.state.garbled
            ],
        }

    def _set_delays(self, message: Message) -> Message:
        for name in ("server_init_ms", "client_init_ms"):
            if name in message:
                setattr(self.state.delays, name, float(message[name]))
        return {}

    def _set_compute_mode(self, gpu: SimulatedGpu, message: Message) -> Message:
        gpu.mode = DriverComputeMode(message["mode"])
        return {}

    def _lose(self, gpu: SimulatedGpu, _: Message) -> Message:
        """All contexts on the GPU fail with an unknown error, and Xid 79 is logged (both assumed)."""
        gpu.lost = True
        self.state.record_xid(gpu, 79, 0)
        for context in gpu.contexts.values():
            context.error, context.holding = UNKNOWN, False
        return {}

    def _recover(self, gpu: SimulatedGpu, _: Message) -> Message:
        gpu.lost = False
        return {}

    def _wedge(self, gpu: SimulatedGpu, _: Message) -> Message:
        self.state.wedged.add(gpu.uuid)
        return {}

    def _unwedge(self, gpu: SimulatedGpu, _: Message) -> Message:
        self.state.wedged.discard(gpu.uuid)
        return {}

    def _garble(self, gpu: SimulatedGpu, _: Message) -> Message:
        self.state.garbled.add(gpu.uuid)
        return {}

    def _ungarble(self, gpu: SimulatedGpu, _: Message) -> Message:
        self.state.garbled.discard(gpu.uuid)
        return {}

    def _exchange(self, gpu: SimulatedGpu, message: Message) -> Message:
        """`to`: the other card's UUID. What ran on the first one fails, as on a lost GPU (assumed)."""
        for context in gpu.contexts.values():
            context.error, context.holding = UNKNOWN, False
        gpu.uuid, gpu.mode = str(message["to"]), DriverComputeMode.DEFAULT
        return {}

    def _add_process(self, gpu: SimulatedGpu, message: Message) -> Message:
        gpu.add_non_mps(int(message["pid"]), int(message["memory_mib"]))
        return {}

    def _remove_process(self, gpu: SimulatedGpu, message: Message) -> Message:
        gpu.remove_non_mps(int(message["pid"]))
        return {}


def processes(gpu: SimulatedGpu) -> Message:
    """[pid, MiB] of each process, MPS clients apart from the others. A process with several contexts has one entry."""
    listed: dict[str, dict[int, int]] = {"mps_clients": {}, "compute": {}}
    for context in gpu.holders():
        group = listed["mps_clients" if context.kind is Kind.CLIENT else "compute"]
        group[context.pid] = group.get(context.pid, 0) + -(-context.used // MIB)
    return {name: [list(item) for item in group.items()] for name, group in listed.items()}


def kernels(gpu: SimulatedGpu) -> Message:
    """[pid, milliseconds left] of each process with a running kernel."""
    now = time.monotonic()
    running = [(context.pid, context.remaining_ms(now)) for context in gpu.contexts.values()]
    return {"kernels": [[pid, left] for pid, left in running if left > 0]}
