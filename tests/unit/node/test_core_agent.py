"""The agent's core against an API, an NVML, a kubelet and an MPS pod that are a few lines each."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import ComputeMode
from gpushare.kube.client import GPU_NODES, GPU_SHARES, NODES, PODS, KubeError, Object, Resource
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import gpu_dir
from gpushare.mps.wire import DaemonState, DaemonWanted
from gpushare.node import agent as module
from gpushare.node import throttle
from gpushare.node.agent import Agent, boot_clock
from gpushare.node.device_service import DeviceService
from gpushare.node.plugin import OfferedDevice
from gpushare.node.podresources import HeldDevice, PodResourcesError
from gpushare.node.preferred import preferred_slots
from gpushare.node.proto import deviceplugin_v1beta1_pb2 as messages
from gpushare.node.settings import AgentSettings

SHARE: Object = {
    "metadata": {"name": "a", "uid": "s", "resourceVersion": "1"},
    "spec": {"clients": {"perGpu": 4, "threads": {"default": 25, "max": 50}, "memory": {"default": "16Gi"}}},
}


class FakeKube:
    """Objects by kind and name; watches tell what changes; server-side apply merges as far as we need it."""

    def __init__(self) -> None:
        self.objects: dict[Resource, dict[str, Object]] = {
            NODES: {
                "n": {
                    "metadata": {"name": "n", "uid": "node-1"},
                    "status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.0"}},
                }
            },
            GPU_SHARES: {"a": SHARE},
            GPU_NODES: {},
            PODS: {},
        }
        self.status_writes = 0
        self._version = 1
        self._watchers: list[tuple[Resource, asyncio.Queue[Object]]] = []

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        try:
            return self.objects[resource][name]
        except KeyError:
            raise KubeError(404, "NotFound", name) from None

    async def list_all(self, resource: Resource, namespace: str | None = None, **_: str) -> Object:
        return {"items": list(self.objects[resource].values()), "metadata": {"resourceVersion": str(self._version)}}

    async def watch(self, resource: Resource, *_: Any) -> AsyncIterator[Object]:
        queue: asyncio.Queue[Object] = asyncio.Queue()
        self._watchers.append((resource, queue))
        while True:
            yield await queue.get()

    async def apply(self, resource: Resource, name: str, body: Object, *, manager: str, **kind: Any) -> Object:
        if kind.get("subresource") == "status":
            self.status_writes += 1
            return self.put(resource, {**self.objects[resource][name], "status": body["status"]})
        return self.put(resource, {"spec": {}, **body, "metadata": {**body["metadata"], "uid": f"u{self._version}"}})

    def put(self, resource: Resource, obj: Object) -> Object:
        self._version += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        self.objects[resource][obj["metadata"]["name"]] = obj
        self._tell(resource, "MODIFIED", obj)
        return obj

    def remove(self, resource: Resource, name: str) -> None:
        self._tell(resource, "DELETED", self.objects[resource].pop(name))

    def assign(self, *assignments: Object) -> None:
        node = self.objects[GPU_NODES]["n"]
        self.put(GPU_NODES, {**node, "spec": {"assignments": list(assignments)}})

    def _tell(self, resource: Resource, kind: str, obj: Object) -> None:
        for watched, queue in self._watchers:
            if watched == resource:
                queue.put_nowait({"type": kind, "object": obj})


@dataclass
class FakeKubelet:
    """Believes each plugin at once; tests say what containers hold."""

    offered: dict[str, list[OfferedDevice]] = field(default_factory=dict)
    holders: set[tuple[str, str]] = field(default_factory=set)
    hooks: dict[str, Any] = field(default_factory=dict)
    services: dict[str, DeviceService] = field(default_factory=dict)
    readings: int = 0
    down: bool = False

    async def held(self) -> list[HeldDevice]:
        if self.down:
            raise PodResourcesError("no kubelet")
        self.readings += 1
        return [HeldDevice("ns", "pod", "app", resource, device_id) for resource, device_id in sorted(self.holders)]

    async def allocatable(self) -> set[tuple[str, str]]:
        if self.down:
            raise PodResourcesError("no kubelet")
        return {(resource, item.id) for resource, items in self.offered.items() for item in items if item.healthy}

    def ids(self, share: str = "a") -> list[str]:
        return sorted(item.id for item in self.offered.get(f"gpushare.dev/{share}", []))

    def plugin(self, resource: str, hooks: Any) -> Any:
        self.hooks[resource] = hooks
        self.services[resource] = DeviceService(hooks, preferred_slots, boot_clock)
        return FakePlugin(self, resource)

    async def allocate(self, device_id: str, resource: str = "gpushare.dev/a") -> None:
        """Gives a container the slot; it is listed once a test says so in `holders`."""
        one = messages.ContainerAllocateRequest(devices_ids=[device_id])
        await self.services[resource].Allocate(messages.AllocateRequest(container_requests=[one]), None)


class FakePlugin:
    """A plugin without sockets: the real service, called directly."""

    def __init__(self, kubelet: FakeKubelet, resource: str) -> None:
        self._kubelet, self._resource = kubelet, resource
        self._service = kubelet.services[resource]
        self.promised, self.settle = self._service.promised, self._service.settle

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self._kubelet.offered[self._resource] = []

    async def leave(self) -> None:
        pass

    def offer(self, devices: list[OfferedDevice]) -> None:
        self._kubelet.offered[self._resource] = devices


class World:
    """One node. `mps` plays the MPS pods: whatever daemon.json wants is done at once while `supervised`."""

    def __init__(self, tmp_path: Path, nvml: Any) -> None:
        self.kube, self.kubelet, self.nvml = FakeKube(), FakeKubelet(), nvml
        self.root, self.cdi = tmp_path / "run", tmp_path / "cdi"
        self.root.mkdir()
        self.supervised = True
        self.agent: Agent | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        settings = AgentSettings(node="n", pod="agent", root=self.root, cdi_dir=self.cdi, simulation_dir="/sim")
        self.agent = Agent(settings, self.kube, self.nvml, self.kubelet, self.kubelet.plugin)  # type: ignore[arg-type]
        self._tasks.append(asyncio.create_task(self.agent.run()))

    async def stop(self) -> None:
        while self._tasks:
            task = self._tasks.pop()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def mps(self) -> None:
        while True:
            for path in self.root.glob("GPU-*/daemon.json"):
                wanted = read_model(path, DaemonWanted).value
                if self.supervised and wanted is not None:
                    self._supervise(wanted)
            await asyncio.sleep(0.02)

    def _supervise(self, wanted: DaemonWanted) -> None:
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
        with contextlib.suppress(OSError):
            write_model(directory.state, state)

    def gates(self) -> list[str]:
        return sorted(path.name for path in self.cdi.glob("*.json"))

    def status(self) -> Object:
        status: Object = self.kube.objects[GPU_NODES].get("n", {}).get("status", {})
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

    async def serving(self) -> None:
        """GPU-0 is assigned to share a and offered."""
        await self.until(lambda: self.status().get("gpus"))
        self.kube.assign({"uuid": "GPU-0", "share": "a"})
        await self.until(lambda: len(self.kubelet.ids()) == 4)


@pytest.fixture
async def world(tmp_path: Path, nvml: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(throttle, "INTERVAL", 0.5)
    monkeypatch.setattr(module, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(module, "KUBELET_SECONDS", 0.2)
    monkeypatch.setattr(module, "NVML_SECONDS", 0.2)
    world = World(tmp_path, nvml)
    mps = asyncio.create_task(world.mps())
    world.start()
    yield world
    await world.stop()
    mps.cancel()


async def test_a_gpunode_is_made_for_the_node_and_tells_its_gpus(world: World) -> None:
    await world.until(lambda: len(world.status().get("gpus", [])) == 2)
    owner = world.kube.objects[GPU_NODES]["n"]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"]) == ("Node", "node-1")


async def test_an_assigned_gpu_is_taken_verified_gated_and_offered(world: World) -> None:
    await world.serving()
    assert world.kubelet.ids() == [f"GPU-0::{slot}" for slot in range(4)]
    assert world.gates() == ["gpushare.dev-gpu-GPU-0.json"]
    assert world.nvml.modes["GPU-0"] is ComputeMode.EXCLUSIVE_PROCESS
    assert gpu_dir(world.root, "GPU-0").original_mode.read_text() == "Default\n"
    await world.until(lambda: world.daemon().get("ready"), 2)
    edits = world.kubelet.hooks["gpushare.dev/a"].edits(["GPU-0::1"])
    assert edits.cdi_devices == ("gpushare.dev/gpu=GPU-0",)
    assert edits.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert await world.kubelet.hooks["gpushare.dev/a"].not_ready(["GPU-0::1"]) is None
    assert len(world.kubelet.offered["internal.gpushare.dev/mps"]) == 64


async def test_before_its_daemon_is_verified_a_gpu_is_neither_offered_nor_gated(world: World) -> None:
    world.supervised = False
    await world.until(lambda: world.status().get("gpus"))
    world.kube.assign({"uuid": "GPU-0", "share": "a"})
    await world.until(lambda: world.daemon().get("reason") == "Pending")
    await world.until(lambda: "gpushare.dev/a" in world.kubelet.offered)
    assert world.kubelet.ids() == []
    assert world.gates() == []
    sentence = await world.kubelet.hooks["gpushare.dev/a"].not_ready(["GPU-0::1"])
    assert "has not taken this GPU yet" in sentence


async def test_a_server_that_let_go_closes_the_gate_and_withdraws_free_slots_alone(world: World) -> None:
    await world.serving()
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::2")}
    await world.until(lambda: world.status().get("holders"), 12)
    world.nvml.servers["GPU-0"] = 4711
    await world.until(lambda: world.gates() == [])
    await world.until(lambda: world.kubelet.ids() == ["GPU-0::2"])
    await world.until(lambda: world.daemon()["reason"] == "ServerLetGo", 2)


async def test_changed_limits_of_the_share_reach_daemon_json(world: World) -> None:
    await world.serving()
    clients = {**SHARE["spec"]["clients"], "threads": {"default": 10, "max": 20}}
    world.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": clients}})
    await world.until(lambda: read_wanted(world).limits.threads == 20)
    world.kube.remove(GPU_SHARES, "a")
    await world.until(lambda: world.kubelet.ids() == [])
    assert read_wanted(world).limits.threads == 20


async def test_draining_withdraws_waits_for_the_last_container_and_then_says_drained(world: World) -> None:
    await world.serving()
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::3")}
    world.kube.assign({"uuid": "GPU-0", "share": "a", "draining": True})
    await world.until(lambda: world.kubelet.ids() == ["GPU-0::3"])
    await asyncio.sleep(0.6)
    assert not world.daemon()["drained"]
    assert world.gates()
    world.kubelet.holders = set()
    await world.until(lambda: world.daemon()["drained"])


async def test_a_young_pod_that_was_listed_and_ended_holds_up_no_draining(world: World) -> None:
    await world.serving()
    await world.kubelet.allocate("GPU-0::3")
    world.kube.assign({"uuid": "GPU-0", "share": "a", "draining": True})
    await world.until(lambda: world.kubelet.ids() == ["GPU-0::3"])
    await world.read()
    assert not world.daemon()["drained"]
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::3")}
    await world.read()
    world.kubelet.holders = set()
    await world.until(lambda: world.daemon()["drained"], 3)


async def test_a_young_pod_s_slot_beyond_a_shrunk_share_is_withdrawn_when_it_ends(world: World) -> None:
    await world.serving()
    await hold_all_four(world)
    shrink(world, 2)
    await world.until(lambda: world.agent is not None and world.agent.decisions["GPU-0"].offer.per_gpu == 2)
    assert len(world.kubelet.ids()) == 4
    world.kubelet.holders.discard(("gpushare.dev/a", "GPU-0::1"))
    await world.until(lambda: world.kubelet.ids() == ["GPU-0::0", "GPU-0::2", "GPU-0::3"], 3)


async def test_a_container_allocated_before_a_freed_slot_is_withdrawn_waits_for_room(world: World) -> None:
    await world.serving()
    await hold_all_four(world)
    shrink(world, 2)
    await world.until(lambda: world.agent is not None and world.agent.decisions["GPU-0"].offer.per_gpu == 2)
    not_ready = world.kubelet.hooks["gpushare.dev/a"].not_ready
    await world.kubelet.allocate("GPU-0::3")
    assert "3 containers hold slots of GpuShare a, which has 2 on each GPU now" in await not_ready(["GPU-0::3"])
    assert await not_ready(["GPU-0::0"]) is None
    world.kubelet.holders -= {("gpushare.dev/a", "GPU-0::0"), ("gpushare.dev/a", "GPU-0::1")}
    await world.read()
    assert await not_ready(["GPU-0::3"]) is None


async def test_a_released_gpu_is_given_back_as_it_was_found(world: World) -> None:
    await world.serving()
    world.kube.assign()
    await world.until(lambda: not gpu_dir(world.root, "GPU-0").path.exists())
    assert world.nvml.modes["GPU-0"] is ComputeMode.DEFAULT
    assert world.gates() == []
    await world.until(lambda: world.status()["daemons"] == [])


async def test_a_gpu_released_while_a_container_holds_a_slot_drains_first(world: World) -> None:
    await world.serving()
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::0")}
    world.kube.assign()
    await world.until(lambda: "hold its slots 0" in world.daemon().get("message", ""), 12)
    assert read_wanted(world).stop is False
    world.kubelet.holders = set()
    await world.until(lambda: not gpu_dir(world.root, "GPU-0").path.exists())


async def test_a_lost_gpunode_is_no_news_and_comes_back(world: World) -> None:
    await world.serving()
    world.kube.remove(GPU_NODES, "n")
    await world.until(lambda: "n" in world.kube.objects[GPU_NODES], 10)
    await asyncio.sleep(0.3)
    assert len(world.kubelet.ids()) == 4
    assert world.gates()


async def test_a_restarted_agent_finds_its_gpus_as_they_were(world: World) -> None:
    await world.serving()
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    closed = False

    async def watch_the_gate() -> None:
        nonlocal closed
        while True:
            closed |= not world.gates()
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch_the_gate())
    await world.stop()
    assert len(world.kubelet.ids()) == 4
    world.start()
    await world.until(lambda: world.agent is not None and world.agent.unready() is None)
    watching.cancel()
    assert not closed
    assert len(world.kubelet.ids()) == 4


async def test_a_release_that_died_midway_goes_on(world: World) -> None:
    await world.serving()
    world.supervised = False
    world.kube.assign()
    await world.until(lambda: read_wanted(world).stop)
    await world.stop()
    world.supervised = True
    world.start()
    await world.until(lambda: not gpu_dir(world.root, "GPU-0").path.exists())
    assert world.nvml.modes["GPU-0"] is ComputeMode.DEFAULT


async def test_without_the_kubelets_word_nothing_is_offered(world: World) -> None:
    await world.stop()
    world.kubelet.down = True
    world.kubelet.offered.clear()
    world.start()
    await world.until(lambda: world.status().get("gpus"))
    world.kube.assign({"uuid": "GPU-0", "share": "a"})
    await world.until(lambda: world.gates())
    assert world.kubelet.offered == {}
    world.kubelet.down = False
    await world.until(lambda: len(world.kubelet.ids()) == 4)


async def test_an_idle_node_writes_nothing(world: World) -> None:
    await world.serving()
    await world.until(lambda: world.daemon().get("ready"), 2)
    await asyncio.sleep(0.5)
    written = world.kube.status_writes
    await asyncio.sleep(1.5)
    assert world.kube.status_writes == written


async def test_two_slots_for_one_container_are_refused_with_the_reason(world: World) -> None:
    await world.serving()
    with pytest.raises(LookupError, match="write a limit of 1"):
        world.kubelet.hooks["gpushare.dev/a"].edits(["GPU-0::1", "GPU-0::2"])


async def hold_all_four(world: World) -> None:
    for slot in range(4):
        await world.kubelet.allocate(f"GPU-0::{slot}")
        world.kubelet.holders.add(("gpushare.dev/a", f"GPU-0::{slot}"))
    await world.read()


def shrink(world: World, per_gpu: int) -> None:
    world.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": {**SHARE["spec"]["clients"], "perGpu": per_gpu}}})


def read_wanted(world: World) -> DaemonWanted:
    wanted = read_model(gpu_dir(world.root, "GPU-0").wanted, DaemonWanted).value
    assert wanted is not None
    return wanted
