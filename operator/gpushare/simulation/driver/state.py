"""The state of the simulated driver: GPUs, versions, start-up delays and Xids. Only in memory."""

import logging
import uuid as uuids
from dataclasses import dataclass, field
from enum import StrEnum

from gpushare.simulation.driver.gpu import SimulatedGpu
from gpushare.simulation.wire import Message

log = logging.getLogger(__name__)
XIDS_KEPT = 1000
SERVER_INIT_MS = 272.0
CLIENT_INIT_MS = 100.0


@dataclass(slots=True)
class Delays:
    """How long start-up takes, in milliseconds; the defaults are measured on an H200."""

    server_init_ms: float = SERVER_INIT_MS
    client_init_ms: float = CLIENT_INIT_MS


class Topology(StrEnum):
    """How NVLink joins the GPUs of a node."""

    SWITCH = "switch"  # each with each through NVSwitches, as on an SXM board
    PAIRS = "pairs"  # two and two by a bridge, as PCIe cards
    NONE = "none"


@dataclass(slots=True)
class DriverState:
    """`wedged`: UUIDs of GPUs about which NVML gets no answer; `garbled`: of those of which it says an unknown error.
    `xids`: the last XIDS_KEPT; `xids_total`: all so far."""

    gpus: list[SimulatedGpu]
    driver_version: str
    cuda_version: str
    delays: Delays = field(default_factory=Delays)
    topology: Topology = Topology.SWITCH
    xids: list[Message] = field(default_factory=list)
    xids_total: int = 0
    wedged: set[str] = field(default_factory=set)
    garbled: set[str] = field(default_factory=set)

    def gpu(self, uuid: str) -> SimulatedGpu | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def nvlinks(self) -> dict[str, list[str]]:
        """The GPUs that each one reaches by NVLink, by UUID, lost ones left out."""
        there = [gpu for gpu in self.gpus if not gpu.lost and gpu.uuid not in self.garbled]
        return {
            gpu.uuid: [
                other.uuid
                for other in there
                if other is not gpu
                and (
                    self.topology is Topology.SWITCH
                    or (self.topology is Topology.PAIRS and other.index // 2 == gpu.index // 2)
                )
            ]
            for gpu in there
        }

    def record_xid(self, gpu: SimulatedGpu, number: int, pid: int) -> None:
        """Log the kernel log's line. `pid` is the process that the driver names: the victim, not the culprit."""
        log.info("NVRM: Xid (%s): %d, pid=%d", gpu.uuid, number, pid)
        self.xids.append({"uuid": gpu.uuid, "xid": number, "pid": pid})
        self.xids_total += 1
        del self.xids[:-XIDS_KEPT]


def make_gpus(node: str, count: int, product: str, sms: int, memory_mib: int) -> list[SimulatedGpu]:
    """`count` GPUs. Their UUIDs are the same after every start on the same node."""
    return [
        SimulatedGpu(
            f"GPU-{uuids.uuid5(uuids.NAMESPACE_URL, f'gpushare:{node}:{index}')}",
            index,
            index,
            product,
            sms,
            memory_mib,
        )
        for index in range(count)
    ]
