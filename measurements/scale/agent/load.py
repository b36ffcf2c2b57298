"""What an agent takes on a full node where nothing changes: memory, CPU and wake-ups.

    python -m measurements.scale.agent.load --before e054fa7 --out measurements/results/scale/agent-load.json  as root

The node has 8 simulated GPUs of one share and 110 pods, of which 48 are clients that have attached through the broker.
API server, etcd, driver, supervisor, broker, MPS daemons and the agent are the product's own or the simulation's, each
in a process of its own. This script is the kubelet: it takes the device plugin's lists and answers PodResources. Of the
clients it is the container runtime, too: in a mount namespace of the script's own,
/proc/PID/cgroup of each names the pod. The agent runs as in a pod, with the packages of `--python`; `--before` measures
that commit's agent, too, on a node like this.

Figures are from /proc/PID of the agent, over `--seconds` that begin once all clients are attached, the GpuNode's status
shows them, and 20 s have gone by. `wakeups`: voluntary context switches of all its threads, of those that live at the
end; `smaps`: what the memory is, as smaps_rollup has it. `millicores`: CPU time by time. A simulated driver is asked in
JSON through a socket, so each reading of the GPUs costs more than NVML's. Nobody asks for metrics.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE

import yaml

from gpushare.agent.proto import podresources_v1_pb2 as resource_messages
from gpushare.api import names
from gpushare.grant.environment import client_environment
from gpushare.grant.model import Grant
from gpushare.kube.client import GPU_NODES, GPU_SHARES, NAMESPACES, NODES, PODS, Kube, Object
from gpushare.mps.layout import BROKER_GROUP, gpu_dir
from gpushare.process import users
from gpushare.simulation.nvml import SimulatedNvml
from localcluster.paths import REPOSITORY
from measurements.scale import results
from measurements.scale.agent.memory import NAMESPACE, NODE, pod
from measurements.scale.nodes import CRDS
from measurements.scale.trees import trees
from measurements.scale.usage import Usage
from tests.cluster.control_plane import ControlPlane, connected, stop
from tests.unit.agent.fake_kubelet import FakeKubelet
from tests.unit.agent.observed_pods import container_id

SHARE = "a"
SLOTS = 8
"""Slots of each GPU."""
THREADS = 10
MEMORY_MIB = 8192
API = {"apiVersion": f"{names.GROUP}/v1alpha1"}
BEGAN = "2026-01-01T00:00:00Z"
OWN_MOUNTS = "GPUSHARE_SCALE_OWN_MOUNTS"
"""Set in the process that has a mount namespace of its own."""
WAIT_SECONDS = 120.0
REST_SECONDS = 20.0
GPUSHARE = (sys.executable, "-m", "gpushare.cli.main")
BROKER = f"""
import asyncio, os, sys
from pathlib import Path
from gpushare.mps.broker.broker import BrokerSettings, serve
from gpushare.mps.clock import boot_clock
os.setgroups([{BROKER_GROUP}]); os.setgid({users.BROKER}); os.setuid({users.BROKER})
asyncio.run(serve(Path(sys.argv[1]), BrokerSettings("{SHARE}", boot_clock)))
"""
MOUNTED = 'read _ && mount -t tmpfs none /run && mkdir -p "$0" && mount --bind "$1" "$0" && shift && exec "$@"'
CLIENT = """
import time
from gpushare.simulation.client import SimulatedContext
context = SimulatedContext.create()
context.alloc(1 << 30)
print("attached", flush=True)
time.sleep(1e6)
"""


@contextmanager
def process(
    log: Path, *argv: str, stdin: int | None = None, stdout: int | None = None, **environment: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """`stdout`: in the log with the errors where it is None."""
    with log.open("ab") as output:
        started = subprocess.Popen(
            argv, env=os.environ | environment, stdin=stdin, stdout=stdout or output, stderr=output
        )
    try:
        yield started
    finally:
        stop(started)


async def until(what: str, condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {WAIT_SECONDS:g} s")
        await asyncio.sleep(0.1)


class Node:
    """`clients` of `pods` pods have a slot each, of `gpus` GPUs in turn; the others ask for none of this node."""

    def __init__(self, scratch: Path, gpus: int, clients: int, pods: int) -> None:
        self.root, self.driver, self.kubelet_dir, self.cdi = (
            scratch / name for name in ("gpus", "driver", "kubelet", "cdi")
        )
        for folder in (self.root, self.driver, self.kubelet_dir, self.cdi):
            folder.mkdir()
        self.log = scratch / "node.log"
        self.gpus = gpus
        self.pods, self.clients = pods, [f"client-{number}" for number in range(clients)]
        self.uuids: list[str] = []
        self.kubelet = FakeKubelet(self.kubelet_dir)
        self._scratch = scratch
        self._waiting: list[subprocess.Popen[bytes]] = []

    async def fill(self, kube: Kube) -> None:
        """Every pod runs, as the API server has it."""
        for path in sorted((REPOSITORY / "crds").glob("*.yaml")):
            await kube.create(CRDS, yaml.safe_load(path.read_text()))
        for namespace in (NAMESPACE, "gpushare-system"):
            await kube.create(NAMESPACES, {"metadata": {"name": namespace}})
        await kube.create(NODES, {"metadata": {"name": NODE}})
        runtime = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.4"}}}
        await kube.patch(NODES, NODE, runtime, manager="kubelet", subresource="status")
        for number in range(self.pods):
            await self._run_pod(kube, number)

    async def _run_pod(self, kube: Kube, number: int) -> None:
        is_client = number < len(self.clients)
        name = self.clients[number] if is_client else f"other-{number}"
        new = pod(name)
        container = new["spec"]["containers"][0]
        if is_client:
            grant = client_environment(Grant(SHARE, THREADS, MEMORY_MIB, 1), None)
            container["env"] += [{"name": name, "value": value} for name, value in grant.items()]
        else:
            del container["resources"]
        await kube.create(PODS, new, NAMESPACE)
        status = {
            "phase": "Running",
            "startTime": BEGAN,
            "conditions": [{"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [
                {
                    "name": "app",
                    "image": container["image"],
                    "imageID": "sha256:0",
                    "ready": True,
                    "restartCount": 0,
                    "containerID": f"containerd://{container_id(number)}",
                    "state": {"running": {"startedAt": BEGAN}},
                }
            ],
        }
        body = {"status": status}
        await kube.patch(PODS, name, body, manager="kubelet", namespace=NAMESPACE, subresource="status")

    async def assign(self, kube: Kube) -> None:
        """All GPUs to one share, as the operator does once the agent has reported them."""
        clients = {
            "perGpu": SLOTS,
            "threads": {"default": THREADS},
            "memory": {"default": f"{MEMORY_MIB}Mi"},
        }
        spec = {"nodeSelector": {"matchLabels": {"a": "a"}}, "clients": clients}
        await kube.create(GPU_SHARES, {**API, "kind": "GpuShare", "metadata": {"name": SHARE}, "spec": spec})
        body = {"spec": {"assignments": [{"uuid": uuid, "share": SHARE} for uuid in self.uuids]}}
        await kube.create(GPU_NODES, {**API, "kind": "GpuNode", "metadata": {"name": NODE}, **body})

    @asynccontextmanager
    async def running(self, kube: Kube) -> AsyncIterator[None]:
        """Starts driver, supervisor, broker, kubelet and the clients' processes, which attach later (`attach_all`)."""
        simulation = str(self.driver)
        driver = ("simulated-driver", f"--directory={self.driver}", f"--node={NODE}", f"--gpus={self.gpus}")
        supervisor = ("mps-supervisor", f"--share={SHARE}", f"--root={self.root}", "--simulation")
        broker = (sys.executable, "-c", BROKER, str(self.root))
        with ExitStack() as started:
            started.enter_context(process(self.log, *GPUSHARE, *driver, "--client-init-ms=0"))
            await until("the driver", (self.driver / "dev/nvidia0").exists)
            self.uuids = _uuids(self.driver)
            self._allocate()
            started.enter_context(process(self.log, *GPUSHARE, *supervisor, GPUSHARE_SIMULATION_DIR=simulation))
            started.enter_context(process(self.log, *broker, GPUSHARE_SIMULATION_DIR=simulation))
            for number, name in enumerate(self.clients):
                client = started.enter_context(self._client(gpu_dir(self.root, self._gpu_of(number)).attach))
                uid = (await kube.get(PODS, name, NAMESPACE))["metadata"]["uid"]
                self._put_in_pod(client.pid, uid, container_id(number))
                self._waiting.append(client)
            await self.kubelet.start()
            try:
                yield
            finally:
                await self.kubelet.stop()

    async def attach_all(self) -> None:
        await until("slots", lambda: len(self._healthy()) == len(self.uuids) * SLOTS)
        for client in self._waiting:
            await asyncio.to_thread(_attach, client)

    def _gpu_of(self, number: int) -> str:
        return self.uuids[number % len(self.uuids)]

    def _allocate(self) -> None:
        """A slot for each client: what the kubelet lists of an agent that was there before."""
        resource = names.slot_resource(SHARE)
        listed, allocatable = resource_messages.ListPodResourcesResponse(), self.kubelet.allocatable
        for number, name in enumerate(self.clients):
            slot = names.slot_id(self._gpu_of(number), number // len(self.uuids))
            devices = [resource_messages.ContainerDevices(resource_name=resource, device_ids=[slot])]
            container = resource_messages.ContainerResources(name="app", devices=devices)
            listed.pod_resources.append(
                resource_messages.PodResources(name=name, namespace=NAMESPACE, containers=[container])
            )
        every = [names.slot_id(uuid, slot) for uuid in self.uuids for slot in range(SLOTS)]
        allocatable.devices.append(resource_messages.ContainerDevices(resource_name=resource, device_ids=every))
        self.kubelet.listed = listed

    def _client(self, pipe: Path) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        """Waits for a line. Has the mount that a container with a slot has, in a mount namespace of its own."""
        environment = {"GPUSHARE_SIMULATION_DIR": str(self.driver), "CUDA_MPS_PIPE_DIRECTORY": names.CLIENT_PIPE_DIR}
        mounted = ("unshare", "--mount", "sh", "-c", MOUNTED, names.CLIENT_PIPE_DIR, str(pipe))
        return process(self.log, *mounted, sys.executable, "-c", CLIENT, stdin=PIPE, stdout=PIPE, **environment)

    def _healthy(self) -> list[str]:
        """The slots that the agent has offered last."""
        offers = (
            {slot for slot, health in slots.items() if health == "Healthy"} for slots in reversed(self.kubelet.lists)
        )
        return sorted(next((slots for slots in offers if any("GPU-" in slot for slot in slots)), ()))

    def _put_in_pod(self, pid: int, uid: str, container: str) -> None:
        text = self._scratch / f"cgroup-{pid}"
        text.write_text(f"0::/kubepods/burstable/pod{uid}/{container}\n")
        subprocess.run(["mount", "--bind", str(text), f"/proc/{pid}/cgroup"], check=True)


def _attach(client: "subprocess.Popen[bytes]") -> None:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(b"now\n")
    client.stdin.flush()
    if client.stdout.readline() != b"attached\n":
        raise RuntimeError("a client did not attach, see the log of the node")


def _uuids(driver: Path) -> list[str]:
    nvml = SimulatedNvml(driver)
    try:
        return [gpu.uuid for gpu in nvml.gpus().infos]
    finally:
        nvml.close()


def agent_command(node: Node) -> list[str]:
    places = [f"--root={node.root}", f"--kubelet-dir={node.kubelet_dir}", f"--cdi-dir={node.cdi}"]
    places.append(f"--device-plugins-dir={node.kubelet_dir}/device-plugins")
    return ["-m", "gpushare.cli.main", "agent", f"--node={NODE}", "--simulation", "--probe-port=18082", *places]


async def measured(plane: ControlPlane, node: Node, python: Path, tree: Path, seconds: int, log: Path) -> Object:
    command, environ = plane.as_in_a_pod(python, tree, agent_command(node))
    environ["GPUSHARE_SIMULATION_DIR"] = str(node.driver)
    kube = await connected(plane)
    try:
        async with node.running(kube):
            await node.assign(kube)
            with log.open("ab") as output:
                agent = subprocess.Popen(command, cwd=tree, env=environ, stdout=output, stderr=output)  # noqa: ASYNC220
            try:
                await node.attach_all()
                await known(kube)
                await asyncio.sleep(REST_SECONDS)
                return await at_rest(agent.pid, seconds)
            finally:
                stop(agent)
    finally:
        await kube.close()


async def known(kube: Kube) -> None:
    """Waits until the status of the GpuNode says that every container with a slot uses its GPU, within its grant."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        status = (await kube.get(GPU_NODES, NODE)).get("status") or {}
        conditions = {item["type"]: item["status"] for item in status.get("conditions") or ()}
        if conditions.get("WithinGrants") == "True" and not status.get("unused"):
            return
        await asyncio.sleep(1.0)
    raise TimeoutError(f"the GpuNode does not show the clients: {conditions}, {status.get('unused')}")


async def at_rest(pid: int, seconds: int) -> Object:
    before, began, woken = Usage.of(pid), time.monotonic(), _wakeups(pid)
    await asyncio.sleep(seconds)
    after, lasted = Usage.of(pid), time.monotonic() - began
    return {
        "residentMib": round(after.resident, 1),
        "peakMib": round(after.peak, 1),
        "smaps": _smaps(pid),
        "threads": _threads(pid),
        "millicores": round(1000 * (after.cpu - before.cpu) / lasted, 1),
        "wakeupsPerSecond": round((_wakeups(pid) - woken) / lasted, 1),
        "cpuSecondsUntilThen": round(before.cpu, 2),
    }


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _wakeups(pid: int) -> int:
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(OSError):
            total += int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total


def _smaps(pid: int) -> dict[str, float]:
    """MiB: what is resident; of it, what this process alone has; and of that what is no file's."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    sizes = {words[0]: int(words[1]) / 1024 for words in lines if words[0].endswith(":")}
    private = sizes["Private_Clean:"] + sizes["Private_Dirty:"]
    return {
        "residentMib": round(sizes["Rss:"], 1),
        "privateMib": round(private, 1),
        "anonymousMib": round(sizes["Anonymous:"], 1),
    }


async def run(args: argparse.Namespace, compared: Mapping[str, Path], scratch: Path) -> Object:
    pythons = {"before": args.before_python or args.python, "after": args.python}
    rounds: dict[str, list[Object]] = {subject: [] for subject in compared}
    for turn in range(args.repeats):
        for subject, tree in compared.items():
            own = scratch / f"{subject}-{turn}"
            own.mkdir()
            node = Node(own, args.gpus, args.clients, args.pods)
            log = own / "agent.log"
            plane = ControlPlane(own / "cluster").create()
            try:
                with plane.running():
                    kube = await connected(plane)
                    await node.fill(kube)
                    await kube.close()
                    figures = await measured(plane, node, pythons[subject], tree, args.seconds, log)
            except BaseException:
                print(log.read_text()[-3000:] if log.exists() else "", node.log.read_text()[-3000:], file=sys.stderr)
                raise
            figures["load"] = results.load()
            rounds[subject].append(figures)
            print(f"{subject}: {json.dumps(figures)}", file=sys.stderr, flush=True)
    return {
        "what": "python -m measurements.scale.agent.load; one agent on a full node at rest, see its documentation",
        "environment": environment(args),
        "agent": rounds,
    }


def environment(args: argparse.Namespace) -> Object:
    asked = ("pods", "clients", "gpus", "seconds", "before")
    return {
        **{key: getattr(args, key) for key in asked},
        "cpu": results.processor(),
        **results.machine(),
        "kubernetes": "1.37.0",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=110)
    parser.add_argument("--clients", type=int, default=48, help="of the pods")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--before", default="", help="a commit to compare with")
    results.add_pythons(parser)
    results.add_out(parser)
    args = parser.parse_args()
    if os.environ.get(OWN_MOUNTS) != "1":
        own = ["unshare", "--mount", sys.executable, "-m", "measurements.scale.agent.load", *sys.argv[1:]]
        raise SystemExit(subprocess.run(own, env=os.environ | {OWN_MOUNTS: "1"}, check=False).returncode)
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)  # the broker is another user
        with trees(args.before, Path(scratch)) as compared:
            result = asyncio.run(run(args, compared, Path(scratch)))
    results.write(result, args.out)


if __name__ == "__main__":
    main()
