"""cluster-autoscaler over gpushare: a node comes for a pod that waits, opens when it serves, and goes again.

Opt-in (`make autoscaler-test SOURCE=DIR`): DIR is `cluster-autoscaler` in a copy of github.com/kubernetes/autoscaler.
It runs as it is, with its own provider of nodes without machines (KWOK). So its nodes have no kubelet and no node
agent: `Machine` stands in for both, and does what they would do when the test says so. All else is real.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.agent.dra.slices import device, resource_slice
from gpushare.api.gpushare import GpuShare
from gpushare.api.names import STARTUP_TAINTS
from gpushare.kube.coordination.heartbeat import heartbeat_lease, heartbeat_spec
from gpushare.nvml.types import GpuInfo
from localcluster.kubectl import Object
from localcluster.paths import cache_root
from localcluster.programs.golang import find_go
from tests.cluster import claims, conftest
from tests.cluster.harness import Harness, Share, Tenant, own_cluster, wait_until

CLUSTER = f"{conftest.CLUSTER}-autoscaler"
GROUP = "gpu-shared"
GROUP_LABEL = "node-group"
BUILD_SECONDS = 1800
SLOTS = 4
SERVED = {"cpu": "8", "memory": "32Gi", "pods": "110"}
UNNOTICED = {"key": "status-taint.cluster-autoscaler.kubernetes.io/control", "effect": "NoSchedule"}
TAINT = {"key": STARTUP_TAINTS[1], "effect": "NoSchedule"}
LIMITS = {"threads": 25, "memoryMib": 16384}
SPEC: dict[str, Any] = {
    "nodeSelector": {"matchLabels": {GROUP_LABEL: GROUP}},
    "clients": {"perGpu": SLOTS, "threads": {"default": 25, "max": 25}, "memory": {"default": "16Gi"}},
}

CLAIMS: dict[str, Any] = {
    "nodeSelector": SPEC["nodeSelector"],
    "clients": {
        "perGpu": SLOTS,
        "threads": {"default": 25, "max": 50},
        "memory": {"default": "16Gi", "max": "64Gi"},
    },
    "delivery": "ResourceClaim",
    "sizes": [{"name": "half", "threads": 50, "memory": "64Gi"}],
}
"""Two claims of the size `half` fill a GPU."""


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest) -> Path:
    source = request.config.getoption("--autoscaler")
    if source is None:
        pytest.skip("needs cluster-autoscaler's source: make autoscaler-test SOURCE=DIR")
    built = cache_root() / "cluster-autoscaler"
    command = [str(find_go(cache_root())), "build", "-tags", "kwok", "-o", str(built), "."]
    subprocess.run(command, cwd=source, env={**os.environ, "GOFLAGS": "-mod=mod"}, timeout=BUILD_SECONDS, check=True)
    return built


@pytest.fixture(scope="module")
def fresh(program: Path) -> Iterator[Harness]:
    with own_cluster(CLUSTER) as harness:
        yield harness


def node_template(*taints: Object, slots: int) -> Object:
    """A template of a node as cloud providers make it from a node group's tags: what a node will offer once it
    serves."""
    offered = {**SERVED, **({"gpushare.dev/scaled": str(slots)} if slots else {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": GROUP,
            "labels": {GROUP_LABEL: GROUP, "kubernetes.io/os": "linux"},
            "annotations": {"cluster-autoscaler.kwok.nodegroup/max-count": "3"},
        },
        "spec": {"taints": list(taints)},
        "status": {"allocatable": offered, "capacity": offered},
    }


def _condition() -> Object:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}


@contextmanager
def autoscaler(harness: Harness, program: Path, *taints: Object, slots: int = SLOTS) -> Iterator[Path]:
    """Runs it over one group of no nodes, whose nodes come with these taints. Yields its log."""
    provider = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": GROUP_LABEL},
        "nodes": {"skipTaint": True},
        "configmap": {"name": "kwok-provider-templates"},
        "kwok": {"install": False},
    }
    nodes = {"apiVersion": "v1", "kind": "List", "items": [node_template(*taints, slots=slots)]}
    texts: dict[str, dict[str, Object]] = {
        "kwok-provider-config": {"config": provider},
        "kwok-provider-templates": {"templates": nodes},
    }
    for name, data in texts.items():
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}
        harness.kubectl.apply({**body, "data": {key: yaml.safe_dump(value) for key, value in data.items()}})
    environment = {
        **os.environ,
        **harness.stack.environment,
        "KWOK_PROVIDER_MODE": "local",
        "POD_NAMESPACE": "default",
    }
    command = [
        str(program), "--cloud-provider=kwok", f"--kubeconfig={environment['KUBECONFIG']}", "--namespace=default",
        "--leader-elect=false", "--scan-interval=2s", "--address=127.0.0.1:0", "--v=4",
        "--scale-down-delay-after-add=5s", "--scale-down-unneeded-time=10s",
    ]  # fmt: skip
    log = harness.layout.logs / "cluster-autoscaler.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield log
        assert process.poll() is None, log.read_text()[-2000:]
    finally:
        process.kill()
        process.wait(30)
        for node in group_nodes(harness):
            harness.kubectl.delete("node", node)


def group_nodes(harness: Harness) -> list[str]:
    return [node["metadata"]["name"] for node in harness.kubectl.items("nodes", f"--selector={GROUP_LABEL}={GROUP}")]


class Machine:
    """What kubelet and node agent of one node would write, from the moment on that they are said to run."""

    def __init__(self, harness: Harness, node: str) -> None:
        self.harness, self.node = harness, node
        self.uuid = f"GPU-0b7e42c1-9c1f-4f57-8f5e-{abs(hash(node)) % 10**12:012}"
        self.serves = False

    def patch(self, kind: str, body: Object, *arguments: str) -> None:
        self.harness.kubectl("patch", kind, self.node, "--type=merge", f"-p={json.dumps(body)}", *arguments)

    def boot(self) -> None:
        """The kubelet registers, and is ready: it knows of no slots yet, whatever the group's template says."""
        self.patch(
            "node",
            {"status": {key: {"gpushare.dev/scaled": None} for key in ("allocatable", "capacity")}},
            "--subresource=status",
        )

    def beat(self) -> None:
        self.patch("node", {"status": {"conditions": [_condition()]}}, "--subresource=status")

    def report(self) -> None:
        """The agent begins: it names its GPU, and says that it lives."""
        gpu_node = {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": self.node}}
        self.harness.kubectl.create(gpu_node)
        made = self.harness.kubectl.get("gpunode", self.node)
        spec = heartbeat_spec("gpushare-agent-imitated", datetime.now(UTC))
        self.harness.system.create(heartbeat_lease(self.node, made, spec))
        gpu = {
            "uuid": self.uuid, "index": 0, "minor": 0, "product": "NVIDIA H200", "memoryMib": 143155, "sms": 132,
            "computeCapability": "9.0", "computeMode": "Default",
        }  # fmt: skip
        self.patch("gpunode", {"status": {"gpus": [gpu], "observedGeneration": 1}}, "--subresource=status")

    def verify(self) -> None:
        """The MPS daemon is verified."""
        made = self.harness.kubectl.get("gpunode", self.node)
        daemon = {
            "uuid": self.uuid, "share": "scaled", "ready": True, "reason": "Ready", "serverPid": 4711,
            "desiredLimits": LIMITS, "currentLimits": LIMITS,
        }  # fmt: skip
        status = {"daemons": [daemon], "observedGeneration": made["metadata"]["generation"]}
        self.patch("gpunode", {"status": status}, "--subresource=status")

    def offer(self) -> None:
        """The kubelet offers the slots."""
        offered = {key: {"gpushare.dev/scaled": str(SLOTS)} for key in ("allocatable", "capacity")}
        self.patch("node", {"status": offered}, "--subresource=status")

    def publish(self, share: Object) -> None:
        """The ResourceSlice, as an agent makes it."""
        info = GpuInfo(
            uuid=self.uuid, index=0, minor=0, product="NVIDIA H200", memory_mib=143155, sms=132,
            compute_capability="9.0", numa_node=0, mig_enabled=False,
        )  # fmt: skip
        owner = self.harness.kubectl.get("node", self.node)["metadata"]["uid"]
        made = device(info, GpuShare.model_validate(share), None)
        assert made is not None
        self.harness.kubectl.create(resource_slice(self.node, owner, [made]))

    def assigned(self) -> bool:
        assignments = self.harness.kubectl.get("gpunode", self.node).get("spec", {}).get("assignments") or []
        return [assignment["share"] for assignment in assignments] == ["scaled"]


def taints_of(harness: Harness, node: str) -> list[str]:
    return [taint["key"] for taint in harness.kubectl.get("node", node)["spec"].get("taints", [])]


def bound_to(tenant: Tenant, pod: str) -> str:
    return str(tenant.kubectl.get("pod", pod)["spec"].get("nodeName", ""))


@contextmanager
def share_and_pod(harness: Harness) -> Iterator[Tenant]:
    share = Share(harness, "scaled")
    share.apply(**SPEC)
    try:
        with harness.namespace() as tenant:
            tenant.start(tenant.pod("client", "scaled", "depart"))
            yield tenant
    finally:
        share.delete()


def first_node(harness: Harness, log: Path) -> str:
    (node,) = wait_until("a node for the pod", lambda: group_nodes(harness), 90, lambda: log.read_text()[-2000:])
    return node


def test_a_node_comes_for_a_pod_opens_once_it_serves_and_goes_when_unused(fresh: Harness, program: Path) -> None:
    with share_and_pod(fresh) as tenant, autoscaler(fresh, program, TAINT) as log:
        machine = Machine(fresh, first_node(fresh, log))
        machine.boot()
        machine.beat()
        assert "TriggeredScaleUp" in {event["reason"] for event in tenant.kubectl.items("events")}
        for _ in range(15):
            machine.beat()
            time.sleep(1)
        assert group_nodes(fresh) == [machine.node], "a node that starts is waited for"
        assert TAINT["key"] in taints_of(fresh, machine.node)
        assert bound_to(tenant, "client") == ""

        machine.report()
        wait_until("the GPU is the share's", machine.assigned, 30)
        assert TAINT["key"] in taints_of(fresh, machine.node), "its daemon is not verified"
        machine.verify()
        machine.offer()
        wait_until("the taint is gone", lambda: TAINT["key"] not in taints_of(fresh, machine.node), 30)
        wait_until("the pod is there", lambda: bound_to(tenant, "client") == machine.node, 30)

        forget_pods(tenant)

        def gone() -> bool:
            if group_nodes(fresh):
                machine.beat()
            return not group_nodes(fresh)

        wait_until("the node is gone", gone, 120, lambda: log.read_text()[-2000:])


def test_without_that_taint_a_node_that_starts_is_not_waited_for(fresh: Harness, program: Path) -> None:
    """The control: it is Ready and has no slots, so nobody seems to need it. Another taint holds the pod back until the
    kubelet has registered; cluster-autoscaler takes no notice of that one.
    """
    with share_and_pod(fresh), autoscaler(fresh, program, UNNOTICED) as log:
        machine = Machine(fresh, first_node(fresh, log))
        machine.boot()
        machine.beat()
        machine.patch("node", {"spec": {"taints": None}})

        def given_up() -> bool:
            if group_nodes(fresh) != [machine.node]:
                return True
            machine.beat()
            return False

        wait_until("it is removed, or another one comes", given_up, 60, lambda: log.read_text()[-2000:])


def forget_pods(tenant: Tenant) -> None:
    """No kubelet would say that their containers have ended."""
    tenant.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")


def starter(tenant: Tenant) -> Object:
    """A pod that needs a node of the group and no part of a GPU."""
    pod = tenant.pod("starter", "unused", "depart")
    pod["spec"]["containers"][0]["resources"] = {}
    pod["spec"]["nodeSelector"] = {GROUP_LABEL: GROUP}
    return pod


def test_claims_bring_nodes_to_a_group_once_a_node_of_the_group_has_served(fresh: Harness, program: Path) -> None:
    """What a node will offer to claims no provider can say: cluster-autoscaler learns it from a node, and remembers."""
    share = Share(fresh, "scaled")
    share.apply(**CLAIMS)
    machines: dict[str, Machine] = {}

    def beat() -> list[str]:
        present = group_nodes(fresh)
        for node in present:
            machines.setdefault(node, Machine(fresh, node)).beat()
        return present

    def grown(count: int) -> bool:
        return len(beat()) == count

    def claimed(pod: str) -> Object:
        return claims.sized(tenant, pod, "scaled", "half", "depart")

    def start_node() -> Machine:
        """A node that has come serves: its taint goes."""
        (machine,) = [item for item in machines.values() if item.node in group_nodes(fresh) and not item.serves]
        machine.boot()
        machine.beat()
        machine.report()
        wait_until("the GPU is the share's", machine.assigned, 30)
        machine.publish(share.get())
        machine.verify()
        machine.serves = True
        wait_until("the taint is gone", lambda: TAINT["key"] not in taints_of(fresh, machine.node), 30)
        return machine

    def explain() -> str:
        return log.read_text()[-2000:]

    def bound(pod: str) -> bool:
        return bound_to(tenant, pod) != ""

    def refused(pod: str) -> bool:
        return "NotTriggerScaleUp" in {event["reason"] for event in tenant.kubernetes_events(pod)}

    try:
        with (
            fresh.namespace() as tenant,
            autoscaler(fresh, program, TAINT, slots=0) as log,
        ):
            claims.wait_template(tenant, "half", "scaled")
            tenant.start(claimed("first"))
            wait_until("no group would help", lambda: refused("first"), 90, explain)
            assert group_nodes(fresh) == []

            tenant.start(starter(tenant))
            wait_until("a node for the starter", lambda: grown(1), 90, explain)
            served = start_node()
            wait_until("the claim is there", lambda: beat() and bound_to(tenant, "first") == served.node, 60)

            tenant.start(claimed("second"), claimed("third"))
            wait_until("a second node for what does not fit on the first", lambda: grown(2), 90, explain)
            start_node()
            wait_until("all are there", lambda: beat() and all(map(bound, ("second", "third"))), 60)

            forget_pods(tenant)
            wait_until("no node is left", lambda: grown(0), 150, explain)
            tenant.start(claimed("fourth"))
            wait_until("a node from zero, for a claim", lambda: grown(1), 90, explain)
            last = start_node()
            wait_until("the claim is there", lambda: beat() and bound_to(tenant, "fourth") == last.node, 60)
            forget_pods(tenant)
    finally:
        share.delete()
