"""One node for the agent's core: an NVML, a kubelet and an MPS pod that are a few lines each."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs
from prometheus_client import CollectorRegistry

from gpushare.agent.agent import Agent, Interfaces
from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.health import AgentHealth
from gpushare.agent.kubelet.allocation_lock import AllocationLock
from gpushare.agent.kubelet.listing import OfferedDevice
from gpushare.agent.kubelet.service import DeviceKind, DeviceService
from gpushare.agent.observe.usage import Reading
from gpushare.agent.podresources.client import PodResourcesError
from gpushare.agent.podresources.holdings import HeldDevice
from gpushare.agent.proto import deviceplugin_v1beta1_pb2 as messages
from gpushare.agent.readings import Readings
from gpushare.agent.reconcile.decision import GpuDecision, LatestDecisions
from gpushare.agent.settings import AgentSettings, Intervals
from gpushare.agent.status.meters import NodeMeters
from gpushare.api.compute_mode import ComputeModePolicy
from gpushare.api.conditions import DaemonReason
from gpushare.kube.client import GPU_NODES, GPU_SHARES, NODES, PODS, Object, Resource
from gpushare.kube.events.event import Event
from gpushare.mps.clock import boot_clock
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import gpu_dir
from gpushare.mps.wire import BrokerState, DaemonState, DesiredDaemon
from gpushare.nvml.types import GpuProcess
from tests.unit.fake_kube import FakeKube

SHARE: Object = {
    "metadata": {"name": "a", "uid": "s"},
    "spec": {"clients": {"perGpu": 4, "threads": {"default": 25, "max": 50}, "memory": {"default": "16Gi"}}},
}


class NodeKube(FakeKube):
    """A cluster with the node and share a, and what the operator does there."""

    def __init__(self) -> None:
        super().__init__()
        info = {"containerRuntimeVersion": "containerd://2.1.0"}
        self.put(NODES, {"metadata": {"name": "n", "uid": "node-1"}, "status": {"nodeInfo": info}})
        self.put(GPU_SHARES, SHARE)

    async def patch(self, resource: Resource, name: str, body: Object, *, manager: str, **_: Any) -> Object:
        known = await self.get(resource, name)
        return self.put(resource, {**known, **body})

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        return self.put(resource, body)

    def put(self, resource: Resource, obj: Object) -> Object:
        """Puts a pod as always; one without a node is on this one."""
        if resource == PODS:
            obj = {**obj, "spec": {"nodeName": "n", **obj.get("spec", {})}}
        return super().put(resource, obj)

    @property
    def status_writes(self) -> int:
        return self.requests.count("apply gpunodes/n/status")

    def assign(self, *assignments: Object) -> None:
        self.put(GPU_NODES, {**self.live(GPU_NODES, "n"), "spec": {"assignments": list(assignments)}})


@dataclass
class FakeKubelet:
    """Accepts each plugin at once; tests set what containers hold."""

    started: set[str] = field(default_factory=set)
    holders: set[tuple[str, str]] = field(default_factory=set)
    kinds: dict[str, Sequence[DeviceKind]] = field(default_factory=dict)
    services: dict[str, DeviceService] = field(default_factory=dict)
    readings: int = 0
    down: bool = False
    later: float = 0.0
    """Seconds by which the readings that plugins get are later than they were taken."""
    plugin_problem: str = ""

    async def held(self) -> list[HeldDevice]:
        if self.down:
            raise PodResourcesError("no kubelet")
        self.readings += 1
        return [HeldDevice("ns", "pod", "app", resource, device_id) for resource, device_id in sorted(self.holders)]

    async def allocatable(self) -> set[tuple[str, str]]:
        if self.down:
            raise PodResourcesError("no kubelet")
        return {(resource, item.id) for resource, items in self.listed.items() for item in items if item.healthy}

    @property
    def listed(self) -> dict[str, list[OfferedDevice]]:
        """The lists of the plugins that have started, of a resource once it was offered."""
        return {resource: self.services[resource].devices for resource in self.started}

    def ids(self, share: str = "a", healthy: bool = True) -> list[str]:
        """Those of the share that may be allocated; else those that may not."""
        return sorted(item.id for item in self.listed.get(f"gpushare.dev/{share}", []) if item.healthy is healthy)

    def plugin(self, resource: str, kinds: Sequence[DeviceKind]) -> Any:
        self.kinds[resource] = kinds
        self.services[resource] = DeviceService(kinds, boot_clock, AllocationLock(boot_clock))
        return FakePlugin(self, resource)

    def edits(self, ids: list[str], resource: str = "gpushare.dev/a") -> ContainerEdits:
        """What a container with these devices would get."""
        return self._kind(ids, resource).edits(ids)

    def not_ready(self, ids: list[str], resource: str = "gpushare.dev/a") -> str | None:
        """Why a container with these devices may not start yet; None: it may."""
        return self._kind(ids, resource).not_ready(ids)

    def _kind(self, ids: list[str], resource: str) -> DeviceKind:
        return next(kind for kind in self.kinds[resource] if kind.has(ids))

    async def allocate(self, device_id: str, resource: str = "gpushare.dev/a") -> None:
        """Gives a container the slot; it is listed once a test says so in `holders`."""
        container = messages.ContainerAllocateRequest(devices_ids=[device_id])
        await self.services[resource].Allocate(Call(messages.AllocateRequest(container_requests=[container])))


class FakePlugin:
    """A plugin without sockets: the real service, called directly."""

    def __init__(self, kubelet: FakeKubelet, resource: str) -> None:
        self._kubelet, self._resource = kubelet, resource
        self._service = kubelet.services[resource]
        self.pending, self.offer = self._service.pending, self._service.offer

    @property
    def problem(self) -> str:
        return self._kubelet.plugin_problem

    def settle(self, listed: Any, allocatable: Any, started: float) -> None:
        self._service.settle(listed, allocatable, started + self._kubelet.later)

    def listed(self) -> bool:
        return bool(self._service.devices)

    async def start(self) -> None:
        self._kubelet.started.add(self._resource)

    async def stop(self) -> None:
        self._kubelet.started.discard(self._resource)

    async def hand_over(self) -> None:
        pass


class FakeDaemon:
    """The control program of every GPU: knows each client that NVML lists."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.asked: list[int] = []

    def sound_servers(self) -> list[int]:
        return [1000]

    def clients(self, server: int) -> list[int]:
        return [process.pid for listed in self._nvml.clients.values() for process in listed]

    def terminate_client(self, server: int, pid: int) -> bool:
        self.asked.append(pid)
        return pid in self.clients(server)


class FakeRecorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, event: Event) -> None:
        self.events.append(event)

    def resolve(self, regarding: Object, reason: Any, subject: str = "") -> None:
        pass


class FakeNode:
    """One node. `mps` plays the MPS pods: whatever daemon.json wants is done at once while `supervised`."""

    def __init__(self, tmp_path: Path, nvml: Any) -> None:
        self.kube, self.kubelet, self.nvml = NodeKube(), FakeKubelet(), nvml
        self.daemons, self.recorder = FakeDaemon(nvml), FakeRecorder()
        self.root, self.cdi, self.proc = tmp_path / "run", tmp_path / "cdi", tmp_path / "proc"
        self.fronts = tmp_path / "image"
        self.root.mkdir()
        self.proc.mkdir()
        self.supervised = True
        self.brief_seconds = Intervals().brief
        self.seldom: float | None = None
        """Seconds between two readings of NVML and two observations; None: short ones."""
        self.only_files = False
        """Nothing but the looks at files and watches starts a tick while a test runs."""
        self.agent: Agent | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, modes: ComputeModePolicy = ComputeModePolicy.MANAGE, cdi: str = "Auto") -> None:
        intervals = Intervals(
            tick=60.0 if self.only_files else 0.1,
            gpus=self.seldom or 0.2,
            kubelet=60.0 if self.only_files else 0.2,
            observe=self.seldom or 0.3,
            status=0.5,
            clear=1.0,
            brief=self.brief_seconds,
        )
        settings = AgentSettings(
            node="n",
            pod="agent",
            root=self.root,
            kubelet_dir=self.root.parent / "kubelet",
            device_plugins=self.root.parent / "kubelet/device-plugins",
            cdi_dir=self.cdi,
            cdi=cdi,
            fronts=self.fronts,
            simulation_dir="/sim",
            compute_mode_policy=modes,
            intervals=intervals,
        )
        kubelet, control = self.kubelet, lambda _: self.daemons
        interfaces = Interfaces(self.kube, self.nvml, kubelet, kubelet.plugin, control, self.recorder, self.proc)  # type: ignore[arg-type]
        self.registry = CollectorRegistry()
        self.agent = Agent(settings, interfaces, NodeMeters(self.registry))
        self._tasks.append(asyncio.create_task(self.agent.run()))

    @property
    def running(self) -> Agent:
        assert self.agent is not None
        return self.agent

    @property
    def readings(self) -> Readings:
        return self.running.readings

    @property
    def observed(self) -> dict[str, Reading]:
        return self.running.observer.observed

    @property
    def latest(self) -> LatestDecisions:
        return self.running.latest

    @property
    def decided(self) -> Mapping[str, GpuDecision]:
        return self.running.latest.gpus

    @property
    def health(self) -> AgentHealth:
        return self.running.health

    async def stop(self) -> None:
        while self._tasks:
            task = self._tasks.pop()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def mps(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # as for want of descriptors
                for path in self.root.glob("GPU-*/daemon.json"):
                    wanted = read_model(path, DesiredDaemon).value
                    if self.supervised and wanted is not None:
                        self._supervise(wanted)
            await asyncio.sleep(0.02)

    def _supervise(self, wanted: DesiredDaemon) -> None:
        directory, pid = gpu_dir(self.root, wanted.uuid), 1000 + int(wanted.uuid[-1])
        if wanted.stop:
            self.nvml.servers.pop(wanted.uuid, None)
        else:
            self.nvml.servers.setdefault(wanted.uuid, pid)
            directory.client_control.touch()
        state = DaemonState(
            uuid=wanted.uuid,
            share=wanted.share,
            heartbeat=time.clock_gettime(time.CLOCK_BOOTTIME),
            reason=DaemonReason.STOPPING if wanted.stop else DaemonReason.READY,
            server_pid=None if wanted.stop else pid,
            in_force=None if wanted.stop else wanted.limits,
            stopped=wanted.stop,
        )
        broker = read_model(directory.broker_state, BrokerState).value
        if broker is None:
            broker = BrokerState(uuid=wanted.uuid, heartbeat=0.0, listening=False)
        news = {"heartbeat": state.heartbeat, "listening": not wanted.stop}
        with contextlib.suppress(OSError):
            write_model(directory.broker_state, structs.replace(broker, **news))
        with contextlib.suppress(OSError):
            write_model(directory.state, state)

    def client(self, pid: int, memory_mib: int, pod: Object) -> None:
        """A process of the pod's only container that uses GPU-0 through MPS."""
        self.process(pid, pod["metadata"]["uid"], "ab" * 32)
        self.nvml.clients["GPU-0"] = [GpuProcess(pid, memory_mib)]

    def process(self, pid: int, pod_uid: str, container_id: str) -> None:
        directory = self.proc / str(pid)
        directory.mkdir(exist_ok=True)
        (directory / "stat").write_text(f"{pid} (python) S " + " ".join(["0"] * 18 + ["100", "0"]))
        (directory / "cgroup").write_text(f"0::/kubepods/pod{pod_uid}/{container_id}\n")

    def gates(self) -> list[str]:
        return sorted(path.name for path in self.cdi.glob("*.json"))

    def status(self) -> Object:
        status: Object = self.kube.live(GPU_NODES, "n").get("status", {}) if self.kube.has(GPU_NODES, "n") else {}
        return status

    def daemon(self) -> Object:
        daemons = self.status().get("daemons") or [{}]
        first: Object = daemons[0]
        return first

    async def until(self, condition: Callable[[], object], seconds: float = 8.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            for task in self._tasks:
                if task.done():
                    task.result()
            assert time.monotonic() < deadline, f"not within {seconds} s; status: {json.dumps(self.status())}"
            await asyncio.sleep(0.02)

    async def read(self) -> None:
        """The agent has begun and ended a reading of the kubelet."""
        before = self.kubelet.readings
        await self.until(lambda: self.kubelet.readings >= before + 2)

    async def ticks(self, count: int) -> None:
        """The agent has ended so many ticks more."""
        for _ in range(count):
            before = self.running.tick.ended_at
            await self.until(lambda before=before: self.running.tick.ended_at > before)

    async def serving(self) -> None:
        """GPU-0 is assigned to share a and offered."""
        await self.until(lambda: self.status().get("gpus"))
        self.kube.assign({"uuid": "GPU-0", "share": "a"})
        await self.until(lambda: len(self.kubelet.ids()) == 4)


def read_wanted(node: FakeNode) -> DesiredDaemon:
    wanted = read_model(gpu_dir(node.root, "GPU-0").wanted, DesiredDaemon).value
    assert wanted is not None
    return wanted


class Call:
    """The kubelet's side of a call: it asks `request`, and hears an answer."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self.answers: list[Any] = []

    async def recv_message(self) -> Any:
        return self._request

    async def send_message(self, answer: Any) -> None:
        self.answers.append(answer)
