"""`kubectl gpushare check`: whether a cluster or a node is ready for shares, and which problems prevent it.

Gathers facts once and checks them purely. The webhook is really called: by a dry run that creates a GpuShare which the
webhook must refuse.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpushare.api import names
from gpushare.api.compute_mode import ComputeMode, ComputeModePolicy
from gpushare.api.conditions import ConditionType, EventReason, ShareReason
from gpushare.api.gpunode import Gpu, GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.api.webhook_probe import WEBHOOK_REFUSAL
from gpushare.kube.resources import CLAIMS_SINCE, Object
from gpushare.kubectl.failures import WrongInputError, unknown
from gpushare.kubectl.output.report import Report, Sentences
from gpushare.kubectl.views.events import last_seen
from gpushare.kubectl.views.metrics_access import MetricsAccess
from gpushare.kubectl.views.objects import is_true, read, troubles
from gpushare.kubectl.views.pods.taints import TOLERATE, untolerated
from gpushare.kubectl.views.pods.trouble import trouble
from gpushare.messages.wording import count_of
from gpushare.planner.model import NodeView
from gpushare.planner.startup import waits_for

OLDEST_KUBERNETES = (1, 32)
OLDEST_CONTAINERD = (1, 7, 2)
WEBHOOK = "webhook"
PARTS = ("operator", WEBHOOK, "agent")
MPS = "mps"
"""Part of the MPS pods, of which there are none without a share."""
LONGEST_WHAT = 16
"""Characters up to which what was checked is aligned."""
_MISSING_AMOUNT = re.compile(r"must specify ((?:limits|requests)\.(?:cpu|memory))")
"""Of a ResourceQuota whose resource a container does not name."""
_MPS_AMOUNTS = {"limits.cpu": "mps.resources.cpuLimit", "requests.cpu": "mps.resources.cpu"}
UNMADE = "FailedCreate"
"""Reason of the events by which Kubernetes' controllers say why they cannot make a pod."""
FAILED_CALL = "failed calling webhook"
"""The API server's message where it did not reach a webhook."""


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`message`: what is so, with the cause of a failure; `hint`: what to do."""

    level: Level
    what: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """`webhook`: the answer to the probe, None if it was admitted. `policies`: names, None if you may not list them.

    `shares`: the GpuShares. Of gpushare's own namespace: `pods`, `workloads` (Deployments and DaemonSets) and
    `failures`, core events about what the API server refuses: pods that could not be made, the webhook's certificate.
    `namespace`: its name.
    """

    version: str
    webhook: str | None
    policies: tuple[str, ...] | None
    enforced: str
    """The Pod Security Standard that gpushare's namespace enforces; empty: none."""
    pods: tuple[Object, ...]
    nodes: tuple[Object, ...]
    gpu_nodes: dict[str, GpuNode]
    workloads: tuple[Object, ...] = ()
    shares: tuple[Object, ...] = ()
    failures: tuple[Object, ...] = ()
    namespace: str = "gpushare-system"
    metrics: MetricsAccess | None = None
    """None: no agent serves any, or you may not read them."""
    metrics_port: int = 0


def check(facts: Facts, node: str | None) -> Report:
    """`node`: only this one. Raises WrongInputError where there is none of that name."""
    known = {result["metadata"]["name"] for result in facts.nodes}
    if node is not None and node not in known:
        raise unknown("node", node, known)
    results = [*_cluster(facts), *(_shares(facts) if node is None else ()), *_nodes(facts, node)]
    width = min(LONGEST_WHAT, max(len(result.what) for result in results))
    lines = []
    for result in results:
        lines.append((f"{result.level.value:<4}  {result.what:<{width}}  ", result.message))
        if result.hint:
            lines.append((f"{'':<4}  hint: ", result.hint))
    data: list[dict[str, Any]] = [
        {"level": result.level.value, "what": result.what, "message": result.message, "hint": result.hint}
        for result in results
    ]
    return Report(
        {"checks": data}, [Sentences(lines)], 1 if any(result.level is Level.FAIL for result in results) else 0
    )


def _cluster(facts: Facts) -> Iterator[CheckResult]:
    old = _numbers(facts.version)[:2] < OLDEST_KUBERNETES
    yield CheckResult(Level.FAIL if old else Level.OK, "Kubernetes", f"{facts.version}; 1.32 or newer is needed")
    usable = "can be used" if _numbers(facts.version)[:2] >= CLAIMS_SINCE else "needs Kubernetes 1.36 or newer"
    yield CheckResult(Level.OK, "ResourceClaims", f"delivery ResourceClaim {usable}")
    for part in PARTS:
        yield _part(part, facts)
    if _of_part(MPS, facts) or _refused_pods(MPS, facts):
        yield _part(MPS, facts)
    yield _webhook(facts.webhook)
    yield _policy(facts.policies)
    if facts.metrics is not None:
        yield _metrics(facts.metrics, facts.metrics_port)
    if facts.enforced not in ("", "privileged"):
        message = f'gpushare\'s namespace enforces "{facts.enforced}": agents and MPS pods need "privileged" there'
        yield CheckResult(Level.FAIL, "Pod Security", message)


def _shares(facts: Facts) -> Iterator[CheckResult]:
    """What the API server refuses to take of the operator, and clients that may starve each other.

    Everything else about shares is told by `status`.
    """
    for listed in facts.shares:
        name = f"share {listed['metadata']['name']}"
        for condition in (listed.get("status") or {}).get("conditions") or ():
            if condition.get("type") == ConditionType.WRITES_ACCEPTED and condition.get("status") != "True":
                yield CheckResult(Level.FAIL, name, f"{condition['reason']}: {condition['message']}")
        with suppress(WrongInputError):  # of another release: `status` says so
            (share,) = read(GpuShare, (listed,))
            if share.may_starve:
                message = (
                    f"each of {count_of(share.clients.per_gpu, 'client')} of a GPU may have all its SMs, so one with "
                    "large kernels can keep all others waiting for seconds"
                )
                hint = "lower clients.threads.default, or let best effort give way: clients.classes"
                yield CheckResult(Level.WARN, name, message, hint)


def _refused_pods(part: str, facts: Facts) -> str:
    """Why some of a part's pods cannot be made; empty where all are."""
    for workload in facts.workloads:
        status, name = workload.get("status") or {}, workload["metadata"]["name"]
        wanted, made = status.get("desiredNumberScheduled", 0), status.get("currentNumberScheduled", 0)
        if _component(workload) == part and made < wanted:
            for failure in _unmade(facts):
                if (failure.get("involvedObject") or {}).get("name") == name:
                    message = failure.get("message", "")
                    return f"{wanted - made} of {count_of(wanted, 'pod')} of {name} cannot be made: {message}"
    return ""


def _part(part: str, facts: Facts) -> CheckResult:
    own = _of_part(part, facts)
    if own and (refused := _refused_pods(part, facts)):
        return CheckResult(Level.FAIL, part, refused, _hint_for_refusal(part, refused, facts.namespace))
    if not own:
        message, hint = _no_pods(part, facts)
        return CheckResult(Level.FAIL, part, message, hint)
    unready = [pod for pod in own if not is_true(pod, "Ready")]
    level = Level.OK if not unready else Level.FAIL if len(unready) == len(own) else Level.WARN
    message = f"{len(own) - len(unready)} of {count_of(len(own), 'pod')} ready"
    cause = trouble(unready[0]) if unready else None
    if part == WEBHOOK and cause is not None and cause.reason == "NotReady" and (refused := _refused_write(facts)):
        return CheckResult(level, part, f"{message}: {ShareReason.WRITE_REFUSED}: {refused}")
    if cause is None:
        return CheckResult(level, part, message)
    where = f"pod {unready[0]['metadata']['name']}{_on_node(unready[0])}"
    return CheckResult(level, part, f"{message}: {cause.cause} ({where})", cause.hint)


def _unmade(facts: Facts) -> list[Object]:
    return [event for event in facts.failures if event.get("reason") == UNMADE]


def _refused_write(facts: Facts) -> str:
    """What the API server refuses to take of the operator in gpushare's own namespace, by the newest event of that."""
    told = [event for event in facts.failures if event.get("reason") == ShareReason.WRITE_REFUSED]
    return str(max(told, key=last_seen).get("message", "")) if told else ""


def _of_part(part: str, facts: Facts) -> list[Object]:
    """The part's pods, without those that are being deleted: that they are not ready is no fault."""
    return [pod for pod in facts.pods if _component(pod) == part and "deletionTimestamp" not in pod["metadata"]]


def _no_pods(part: str, facts: Facts) -> tuple[str, str]:
    """Why a part has no pod at all, and what to do."""
    own = next((workload for workload in facts.workloads if _component(workload) == part), None)
    if own is None:
        hint = "install the chart there, or name its namespace with --system-namespace"
        return f"0 of 0 pods ready: nothing of it is in namespace {facts.namespace}", hint
    kind, name, status = own.get("kind", ""), own["metadata"]["name"], own.get("status") or {}
    for failure in _unmade(facts):
        about = failure.get("involvedObject") or {}
        if str(about.get("name", "")).startswith(name):
            said = str(failure.get("message", ""))
            return f"no pod can be made: {said}", _hint_for_refusal(part, said, facts.namespace)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            said = str(condition.get("message", ""))
            return f"no pod can be made: {said}", _hint_for_refusal(part, said, facts.namespace)
    if kind == "DaemonSet" and status.get("desiredNumberScheduled") == 0:
        labels = (own["spec"]["template"]["spec"] or {}).get("nodeSelector") or {}
        wanted = ", ".join(f"{key}={value}" for key, value in labels.items())
        return (
            f"0 of 0 pods ready: DaemonSet {name} fits no node{f', it wants {wanted}' if wanted else ''}",
            "label the nodes that have GPUs, or change the chart's nodeSelector and tolerations of the agent",
        )
    if (own.get("spec") or {}).get("replicas") == 0:
        return f"{kind} {name} is scaled to 0", f"kubectl scale -n {facts.namespace} deployment/{name} --replicas=1"
    return f"0 of 0 pods ready: {kind} {name} has made none yet", ""


def _hint_for_refusal(part: str, said: str, namespace: str) -> str:
    """What to do about a policy or a quota that refuses a part's pods; the value to set, where a quota wants one."""
    if missing := _MISSING_AMOUNT.search(said):
        value = _MPS_AMOUNTS.get(missing[1], "") if part == MPS else f"{part}.resources.{missing[1]}"
        if value:
            return f"set the chart's {value}, which that ResourceQuota asks of every container"
    if "exceeded quota" in said:
        return f"raise that ResourceQuota of namespace {namespace}; the pods come by themselves"
    return f"leave namespace {namespace} out of what refuses them; the pods come by themselves"


def _component(obj: Object) -> str:
    return str((obj["metadata"].get("labels") or {}).get("app.kubernetes.io/component", ""))


def _on_node(pod: Object) -> str:
    node = (pod.get("spec") or {}).get("nodeName")
    return f" on {node}" if node else ""


def _webhook(answer: str | None) -> CheckResult:
    if answer is None:
        return CheckResult(
            Level.WARN, "admission", "a wrong GpuShare was admitted: the API server does not call the webhook"
        )
    if FAILED_CALL in answer:
        return CheckResult(Level.FAIL, "admission", f"the API server does not reach the webhook: {answer}")
    if WEBHOOK_REFUSAL in answer:
        return CheckResult(Level.OK, "admission", "the webhook checks GpuShares")
    return CheckResult(Level.WARN, "admission", f"could not be checked: {answer}")


def _policy(policies: tuple[str, ...] | None) -> CheckResult:
    if policies is None:
        return CheckResult(Level.WARN, "policies", "unknown: you may not list ValidatingAdmissionPolicies")
    ours = [name for name in policies if name.startswith("gpushare-")]
    if not ours:
        return CheckResult(Level.WARN, "policies", "none of gpushare's: RBAC alone limits what its parts may do")
    return CheckResult(Level.OK, "policies", f"{len(ours)} of gpushare's")


def _metrics(access: MetricsAccess, port: int) -> CheckResult:
    if not access.problem:
        return CheckResult(Level.OK, "metrics", "the API server reaches those of the agents")
    message = f"the API server does not reach the agent of node {access.node}, whom top, trial, recommend and ui ask: "
    value = access.missing(port)
    hint = (
        "helm upgrade with --reuse-values and --set-json '" + value + "', where the API server's connections have that"
    )
    hint += " address; a managed one may have others"
    return CheckResult(Level.WARN, "metrics", message + access.problem, hint if value else "")


def _nodes(facts: Facts, wanted: str | None) -> Iterator[CheckResult]:
    for node in facts.nodes:
        name = node["metadata"]["name"]
        gpu_node = facts.gpu_nodes.get(name)
        has_gpus = gpu_node is not None or node["metadata"].get("labels", {}).get("nvidia.com/gpu.present") == "true"
        if (wanted is None and has_gpus) or name == wanted:
            problems = list(_node(name, node, gpu_node, _tolerated(facts)))
            yield from problems or [CheckResult(Level.OK, f"node {name}", _fit(gpu_node))]


def _tolerated(facts: Facts) -> list[Object]:
    """The tolerations that the webhook gives to pods of shares, by its arguments."""
    arguments = [
        str(argument)
        for workload in facts.workloads
        if _component(workload) == "webhook"
        for container in workload["spec"]["template"]["spec"].get("containers") or ()
        for argument in container.get("args") or ()
    ]
    keys = [argument.partition("=")[2] for argument in arguments if argument.startswith("--tolerate-taint=")]
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]


def _node(name: str, node: Object, gpu_node: GpuNode | None, tolerations: Sequence[Object]) -> Iterator[CheckResult]:
    where = f"node {name}"
    if not is_true(node, "Ready"):
        yield CheckResult(Level.FAIL, where, "is not Ready")
    if (node.get("spec") or {}).get("unschedulable"):
        yield CheckResult(Level.WARN, where, "is cordoned: no pod is placed there", f"kubectl uncordon {name}")
    runtime = node.get("status", {}).get("nodeInfo", {}).get("containerRuntimeVersion", "")
    if runtime.startswith("containerd://") and _numbers(runtime) < OLDEST_CONTAINERD:
        yield CheckResult(Level.FAIL, where, f"{runtime}: containerd 1.7.2 or newer is needed")
    own = {daemon.resource for daemon in gpu_node.status.daemons} if gpu_node is not None else set()
    served = [key for key, amount in (node.get("status", {}).get("allocatable") or {}).items()
              if key.startswith(names.NVIDIA_RESOURCES) and str(amount) != "0" and key not in own]  # fmt: skip
    if served:
        message = f"NVIDIA's device plugin offers {served[0]}: its GPUs cannot be shared; label the node "
        yield CheckResult(Level.WARN, where, message + "nvidia.com/gpu.deploy.device-plugin=false to change that")
    taints = [
        taint["key"] for taint in node.get("spec", {}).get("taints") or () if taint["key"] in names.STARTUP_TAINTS
    ]
    if taints:
        yield CheckResult(Level.WARN, where, f"has the start-up taint {taints[0]}: {_starting(name, node, gpu_node)}")
    for taint in untolerated(node, {"spec": {"tolerations": tolerations}}):
        message = f"has the taint {taint}: pods of shares that do not tolerate it stay away"
        yield CheckResult(Level.WARN, where, message, TOLERATE)
    if gpu_node is None:
        yield CheckResult(
            Level.FAIL, where, "no agent reports it: look for the agent's pod and the NVIDIA driver on the node"
        )
        return
    if gpu_node.silence:
        yield CheckResult(Level.FAIL, where, f"{EventReason.AGENT_SILENT}: {gpu_node.silence}")
        return
    for condition in troubles(gpu_node):
        yield CheckResult(Level.FAIL, where, f"{condition.reason}: {condition.message}")
    for gpu in gpu_node.status.gpus:
        if gpu.lost:
            yield CheckResult(Level.FAIL, where, f"GPU {gpu.uuid} is lost")
        elif gpu.mig_enabled:
            yield CheckResult(Level.WARN, where, f"GPU {gpu.uuid} is in MIG mode and cannot be shared")
        elif _in_foreign_mode(gpu, gpu_node.status.compute_mode_policy):
            message = f"GPU {gpu.uuid} is in compute mode {gpu.compute_mode}, which gpushare did not set"
            yield CheckResult(Level.WARN, where, f"{message}: nvidia-smi -c DEFAULT makes it usable")


def _starting(name: str, node: Object, gpu_node: GpuNode | None) -> str:
    """What keeps it, as far as a node tells."""
    planned = gpu_node.spec.assignments or () if gpu_node is not None else ()
    view = NodeView(name, node["metadata"].get("labels") or {}, True, frozenset(), gpu_node, starting=True)
    return waits_for(view, planned, {}) or "it goes once the kubelet offers the slots, within seconds"


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
    spoken = any(daemon.protocol == "V3" for daemon in state.daemons)
    unproven = "; MPS daemons speak v3, which is untested on hardware (mps.protocol: V2 ends that)" if spoken else ""
    return (
        f"{count_of(len(state.gpus), f'{simulated}GPU')}, driver {state.driver_version}, "
        f"{count_of(state.client_ceiling, 'MPS client')} on each{unproven}"
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
