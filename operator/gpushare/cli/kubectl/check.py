"""`kubectl gpushare check`: whether a cluster or a node is ready for shares, and which problems prevent it.

Gathers facts once and checks them purely. The webhook is really called: by a dry run that creates a GpuShare which the
webhook must refuse.
"""

import argparse
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ComputeMode, ComputeModePolicy, Gpu, GpuNode
from gpushare.cli.kubectl.report import Report, Section
from gpushare.controller.resync import CLAIMS_SINCE
from gpushare.fleet.refusals import NVIDIA_RESOURCES
from gpushare.kube.client import (
    API_ERRORS,
    GPU_NODES,
    GPU_SHARES,
    NAMESPACES,
    NODES,
    PODS,
    POLICIES,
    Kube,
    KubeError,
    Object,
)

OLDEST_KUBERNETES = (1, 32)
OLDEST_CONTAINERD = (1, 7, 2)
PARTS = ("operator", "webhook", "agent")
REFUSED_PRODUCT = " "
"""A product name that the schema takes and the webhook refuses."""
PROBE = {
    "apiVersion": names.API_VERSION,
    "kind": "GpuShare",
    "metadata": {"name": "webhook-probe"},
    "spec": {"gpus": {"products": [REFUSED_PRODUCT]}, "clients": {"perGpu": 1, "memory": {"default": "1Gi"}}},
}
FAILED_CALL = "failed calling webhook"
"""The API server's message where it did not reach a webhook."""


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class CheckResult:
    level: Level
    what: str
    message: str


@dataclass(frozen=True, slots=True)
class Facts:
    """`webhook`: the answer to the probe, None where it was admitted. `pods`: of gpushare's own namespace.

    `policies`: names, None where we may not list them.
    """

    version: str
    webhook: str | None
    policies: tuple[str, ...] | None
    enforced: str
    """The Pod Security Standard that gpushare's namespace enforces; empty: none."""
    pods: tuple[Object, ...]
    nodes: tuple[Object, ...]
    gpu_nodes: dict[str, GpuNode]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", nargs="?", metavar="NODE", help="check this node only; default: all nodes with GPUs")


async def run(kube: Kube, args: argparse.Namespace) -> Report:
    namespace = await kube.find(NAMESPACES, args.system_namespace)
    labels = (namespace or {"metadata": {}})["metadata"].get("labels") or {}
    gpu_nodes = [GpuNode.model_validate(item) for item in (await kube.list_all(GPU_NODES))["items"]]
    ours = await kube.list_all(PODS, args.system_namespace, labelSelector="app.kubernetes.io/name=gpushare")
    facts = Facts(
        version=await kube.server_version(),
        webhook=await _probe_webhook(kube),
        policies=await _policies(kube),
        enforced=labels.get("pod-security.kubernetes.io/enforce", ""),
        pods=tuple(ours.get("items") or ()),
        nodes=tuple((await kube.list_all(NODES))["items"]),
        gpu_nodes={node.name: node for node in gpu_nodes},
    )
    return check(facts, args.node)


async def _probe_webhook(kube: Kube) -> str | None:
    try:
        await kube.create(GPU_SHARES, PROBE, dry_run=True)
    except API_ERRORS as error:
        return str(error)
    return None


async def _policies(kube: Kube) -> tuple[str, ...] | None:
    try:
        return tuple(item["metadata"]["name"] for item in (await kube.list_all(POLICIES))["items"])
    except KubeError:
        return None


def check(facts: Facts, node: str | None) -> Report:
    found = [*_cluster(facts), *_nodes(facts, node)]
    data: list[dict[str, Any]] = [{"level": it.level.value, "what": it.what, "message": it.message} for it in found]
    rows = [(it.level.value, it.what, it.message) for it in found]
    code = 1 if any(it.level is Level.FAIL for it in found) else 0
    return Report({"checks": data}, [Section("Checks", ("", "WHAT", "MESSAGE"), rows)], code)


def _cluster(facts: Facts) -> Iterator[CheckResult]:
    old = _numbers(facts.version)[:2] < OLDEST_KUBERNETES
    yield CheckResult(Level.FAIL if old else Level.OK, "Kubernetes", f"{facts.version}; 1.32 or newer is needed")
    usable = "can be used" if _numbers(facts.version)[:2] >= CLAIMS_SINCE else "needs Kubernetes 1.36 or newer"
    yield CheckResult(Level.OK, "ResourceClaims", f"delivery ResourceClaim {usable}")
    for part in PARTS:
        yield _part(part, facts.pods)
    yield _webhook(facts.webhook)
    yield _policy(facts.policies)
    if facts.enforced not in ("", "privileged"):
        message = f'gpushare\'s namespace enforces "{facts.enforced}": agents and MPS pods need "privileged" there'
        yield CheckResult(Level.FAIL, "Pod Security", message)


def _part(part: str, pods: Iterable[Object]) -> CheckResult:
    own = [pod for pod in pods if pod["metadata"].get("labels", {}).get("app.kubernetes.io/component") == part]
    ready = sum(_is_true(pod, "Ready") for pod in own)
    level = Level.FAIL if ready == 0 else Level.WARN if ready < len(own) else Level.OK
    return CheckResult(level, part, f"{ready} of {len(own)} pods ready")


def _webhook(answer: str | None) -> CheckResult:
    if answer is None:
        return CheckResult(
            Level.WARN, "admission", "a wrong GpuShare was admitted: the API server does not call the webhook"
        )
    if FAILED_CALL in answer:
        return CheckResult(Level.FAIL, "admission", f"the API server does not reach the webhook: {answer}")
    if "spec.gpus.products" in answer:
        return CheckResult(Level.OK, "admission", "the webhook checks GpuShares")
    return CheckResult(Level.WARN, "admission", f"could not be checked: {answer}")


def _policy(found: tuple[str, ...] | None) -> CheckResult:
    if found is None:
        return CheckResult(Level.WARN, "policies", "unknown: you may not list ValidatingAdmissionPolicies")
    ours = [name for name in found if name.startswith("gpushare-")]
    if not ours:
        return CheckResult(Level.WARN, "policies", "none of gpushare's: RBAC alone limits what its parts may do")
    return CheckResult(Level.OK, "policies", f"{len(ours)} of gpushare's")


def _nodes(facts: Facts, wanted: str | None) -> Iterator[CheckResult]:
    known = {node["metadata"]["name"]: node for node in facts.nodes}
    if wanted is not None and wanted not in known:
        yield CheckResult(Level.FAIL, f"node {wanted}", "there is no such node")
    for name, node in known.items():
        gpu_node = facts.gpu_nodes.get(name)
        has_gpus = gpu_node is not None or node["metadata"].get("labels", {}).get("nvidia.com/gpu.present") == "true"
        if (wanted is None and has_gpus) or name == wanted:
            problems = list(_node(name, node, gpu_node))
            yield from problems or [CheckResult(Level.OK, f"node {name}", _fit(gpu_node))]


def _node(name: str, node: Object, gpu_node: GpuNode | None) -> Iterator[CheckResult]:
    where = f"node {name}"
    if not _is_true(node, "Ready"):
        yield CheckResult(Level.FAIL, where, "is not Ready")
    runtime = node.get("status", {}).get("nodeInfo", {}).get("containerRuntimeVersion", "")
    if runtime.startswith("containerd://") and _numbers(runtime) < OLDEST_CONTAINERD:
        yield CheckResult(Level.FAIL, where, f"{runtime}: containerd 1.7.2 or newer is needed")
    served = [key for key, amount in (node.get("status", {}).get("allocatable") or {}).items()
              if key.startswith(NVIDIA_RESOURCES) and str(amount) != "0"]  # fmt: skip
    if served:
        message = f"NVIDIA's device plugin offers {served[0]}: its GPUs cannot be shared; label the node "
        yield CheckResult(Level.WARN, where, message + "nvidia.com/gpu.deploy.device-plugin=false to change that")
    if gpu_node is None:
        yield CheckResult(
            Level.FAIL, where, "no agent reports it: look for the agent's pod and the NVIDIA driver on the node"
        )
        return
    if gpu_node.silence:
        yield CheckResult(Level.FAIL, where, f"{EventReason.AGENT_SILENT}: {gpu_node.silence}")
        return
    for condition in gpu_node.status.conditions:
        if condition.type.endswith("Reachable") and condition.status != "True":
            yield CheckResult(Level.FAIL, where, f"{condition.reason}: {condition.message}")
    for gpu in gpu_node.status.gpus:
        if gpu.lost:
            yield CheckResult(Level.FAIL, where, f"GPU {gpu.uuid} is lost")
        elif gpu.mig_enabled:
            yield CheckResult(Level.WARN, where, f"GPU {gpu.uuid} is in MIG mode and cannot be shared")
        elif _in_foreign_mode(gpu, gpu_node.status.compute_mode_policy):
            message = f"GPU {gpu.uuid} is in compute mode {gpu.compute_mode}, which gpushare did not set"
            yield CheckResult(Level.WARN, where, f"{message}: nvidia-smi -c DEFAULT makes it usable")


def _in_foreign_mode(gpu: Gpu, modes: ComputeModePolicy) -> bool:
    """The operator's own rule: with Leave the administrator sets modes, but Prohibited refuses MPS too."""
    if modes is ComputeModePolicy.LEAVE:
        return gpu.compute_mode is ComputeMode.PROHIBITED
    return gpu.compute_mode is not ComputeMode.DEFAULT and gpu.original_compute_mode is None


def _fit(gpu_node: GpuNode | None) -> str:
    if gpu_node is None or not gpu_node.status.gpus:
        return "its agent runs; it has no GPU"
    state = gpu_node.status
    simulated = "simulated " if state.simulated else ""
    return (
        f"{len(state.gpus)} {simulated}GPUs, driver {state.driver_version}, {state.client_ceiling} MPS clients on each"
    )


def _is_true(obj: Object, kind: str) -> bool:
    conditions = obj.get("status", {}).get("conditions") or []
    return any(it.get("type") == kind and it.get("status") == "True" for it in conditions)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
