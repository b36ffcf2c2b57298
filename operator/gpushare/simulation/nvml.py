"""NVML on the simulated driver: the simulated implementation of `gpushare.nvml.types.Nvml`."""

import select
import threading
import time
from contextlib import suppress
from pathlib import Path

from gpushare.api.compute_mode import ComputeMode
from gpushare.nvml.types import GpuInfo, GpuList, GpuLostError, GpuProcess, GpuProcesses, NvmlError, Xid
from gpushare.simulation import paths
from gpushare.simulation.wire import Channel, Disconnected, Message, connect

SECONDS = 5.0
XID_POLL_SECONDS = 0.5
COMPUTE_CAPABILITY = "9.0"


class DriverChannel:
    """Requests to the simulated driver through `driver.sock`. Connects at the first one, and again after a failure.
    Thread-safe."""

    def __init__(self, directory: Path, seconds: float = SECONDS) -> None:
        self._path = paths.driver_socket(str(directory))
        self._seconds = seconds
        self._lock = threading.Lock()
        self._channel: Channel | None = None

    def ask(self, operation: str, **arguments: object) -> Message:
        """The driver's answer. Raises NvmlError if the driver refuses, cannot be reached, or exceeds the time limit."""
        with self._lock:
            try:
                answer = self._exchange({"op": operation, **arguments})
            except (OSError, Disconnected) as error:
                self._drop()
                raise NvmlError(f"no answer from the simulated driver at {self._path}: {error}") from error
        if answer.get("lost"):
            raise GpuLostError(answer["refused"])
        if "refused" in answer:
            raise NvmlError(answer["refused"])
        return answer

    def _exchange(self, message: Message) -> Message:
        if self._channel is not None:
            # A restart of the driver since the last request is no failure: connect again.
            with suppress(OSError, Disconnected):
                if self._alive():
                    return self._channel.ask(message)
            self._drop()
        self._channel = Channel(connect(self._path, self._seconds), lambda _: None)
        return self._channel.ask(message)

    def _alive(self) -> bool:
        assert self._channel is not None  # noqa: S101 - narrows for the type checker
        # The driver sends nothing unasked: a readable socket has been closed.
        readable, _, _ = select.select([self._channel.sock], [], [], 0)
        return not readable

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def close(self) -> None:
        with self._lock:
            self._drop()


class SimulatedNvml:
    """Implements gpushare.nvml.types.Nvml. Connects at the first call."""

    simulated = True

    def __init__(self, directory: Path, seconds: float = SECONDS) -> None:
        self._driver = DriverChannel(directory, seconds)
        self._xids_seen: int | None = None

    def driver_version(self) -> str:
        return str(self._driver.ask("info")["driver_version"])

    def cuda_version(self) -> str:
        return str(self._driver.ask("info")["cuda_version"])

    def gpus(self) -> GpuList:
        answer = self._driver.ask("gpus")
        links = answer.get("nvlinks", {})  # a driver of an earlier release says nothing of them
        infos = [
            GpuInfo(
                **gpu,
                compute_capability=COMPUTE_CAPABILITY,
                numa_node=None,
                mig_enabled=False,
                nvlinked=frozenset(links.get(gpu["uuid"], ())),
            )
            for gpu in answer["gpus"]
        ]
        return GpuList(infos, answer.get("unreadable", []))

    def compute_mode(self, uuid: str) -> ComputeMode:
        return ComputeMode(self._driver.ask("compute_mode", uuid=uuid)["mode"])

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self._driver.ask("set_compute_mode", uuid=uuid, mode=mode.value)

    def processes(self, uuid: str) -> GpuProcesses:
        answer = self._driver.ask("processes", uuid=uuid)
        return GpuProcesses(
            mps_clients=tuple(GpuProcess(pid, mib) for pid, mib in answer["mps_clients"]),
            compute=tuple(GpuProcess(pid, mib) for pid, mib in answer["compute"]),
        )

    def free_memory_mib(self, uuid: str) -> int | None:
        free: int | None = self._driver.ask("processes", uuid=uuid).get("free_mib")
        return free

    def utilization(self, uuid: str) -> int | None:
        return int(self._driver.ask("utilization", uuid=uuid)["percent"])

    def wait_for_xids(self, seconds: float) -> list[Xid]:
        """Polls, since the driver sends nothing unasked."""
        end = time.monotonic() + seconds
        while True:
            answer = self._driver.ask("xids")
            total, kept = answer["total"], answer["xids"]
            # A restarted driver counts from 0 again. Xids from before our first call are not reported.
            seen = total if self._xids_seen is None else min(self._xids_seen, total)
            self._xids_seen = total
            if total > seen:
                return [Xid(item["uuid"], item["xid"]) for item in kept[-(total - seen) :]]
            if time.monotonic() >= end:
                return []
            time.sleep(XID_POLL_SECONDS)

    def close(self) -> None:
        self._driver.close()
