"""The monitor of a simulated GPU, through the simulated driver's socket, which only root can reach."""

from pathlib import Path
from typing import Any

from gpushare.simulation.paths import directory, driver_socket
from gpushare.simulation.wire import Channel, Disconnected, Message, connect
from gpushare_workload.gpus.monitor import GpuMonitorError, GpuUsage, ListedProcesses, index_of

SECONDS = 5.0


class SimulatedMonitor:
    """One simulated GPU, through one connection to the simulated driver."""

    simulated = True

    def __init__(self, channel: Channel, gpu: Message, versions: Message) -> None:
        self._channel, self._gpu, self._versions = channel, gpu, versions

    @classmethod
    def open(cls, chosen: str) -> "SimulatedMonitor | None":
        """The monitor of the GPU that `chosen` names; None if the socket is out of reach (in a container, not root)."""
        path = driver_socket(directory())
        if not Path(path).exists():
            return None
        try:
            channel = Channel(connect(path, SECONDS), lambda _: None)
            gpus = channel.ask({"op": "gpus"})["gpus"]
            versions = channel.ask({"op": "info"})
        except (OSError, Disconnected):
            return None
        return cls(channel, gpus[index_of(chosen, [gpu["uuid"] for gpu in gpus])], versions)

    @property
    def uuid(self) -> str:
        return str(self._gpu["uuid"])

    def processes(self) -> ListedProcesses:
        answer = self._ask("processes")
        return ListedProcesses(*(dict(answer[group]) for group in ("mps_clients", "compute")))

    def usage(self) -> GpuUsage:
        """No utilisation: nothing is computed on a simulated GPU."""
        listed = self.processes()
        return GpuUsage(sum(listed.mps_clients.values()) + sum(listed.others.values()))

    def compute_mode(self) -> str:
        return str(self._ask("compute_mode")["mode"])

    def set_compute_mode(self, mode: str) -> None:
        self._ask("set_compute_mode", mode=mode)

    def clocks(self) -> dict[str, Any]:
        return {"reasons": []}

    def facts(self) -> dict[str, Any]:
        gpu = self._gpu
        return {
            "product": f"{gpu['product']} (simulated)",
            "uuid": gpu["uuid"],
            "memory_mib": gpu["memory_mib"],
            "sms": gpu["sms"],
            "driver": self._versions["driver_version"],
            "cuda_of_driver": self._versions["cuda_version"],
            "compute_mode": self.compute_mode(),
        }

    def _ask(self, operation: str, **arguments: Any) -> Message:
        try:
            answer = self._channel.ask({"op": operation, "uuid": self.uuid, **arguments})
        except (OSError, Disconnected) as error:
            raise GpuMonitorError(f"the simulated driver does not answer: {error}") from error
        if "refused" in answer:
            raise GpuMonitorError(str(answer["refused"]))
        return answer
