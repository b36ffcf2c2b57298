"""Asks for everything that `views.check` judges. The webhook is really called, by a dry run that it must refuse, and so
is one agent, for its metrics.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import Future
from http import HTTPStatus
from typing import TYPE_CHECKING

from gpushare.api.conditions import ShareReason
from gpushare.api.webhook_probe import WEBHOOK_PROBE
from gpushare.kube.resources import (
    CORE_EVENTS,
    DAEMON_SETS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    GPU_NODES,
    GPU_SHARES,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    POLICIES,
    KubeError,
    Object,
)
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster, optional
from gpushare.kubectl.commands.top import metrics_of, metrics_port
from gpushare.kubectl.failures import UnreachableError
from gpushare.kubectl.output.report import Report

if TYPE_CHECKING:
    from gpushare.kubectl.views.metrics_access import MetricsAccess

AGENT_POLICY = "gpushare-agent"
API_SERVER = "kubernetes.io/service-name=kubernetes"
WORKLOADS = {"Deployment": DEPLOYMENTS, "DaemonSet": DAEMON_SETS}
OURS = "app.kubernetes.io/name=gpushare"
FAILURES = ("FailedCreate", ShareReason.WRITE_REFUSED)
"""Reasons of the events that tell why a part's pods are not there, or not ready."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", nargs="?", metavar="NODE", help="check this node alone; default: all nodes with GPUs")
    options.add_output(parser, names=False, watch=False, tables=False)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    own = args.system_namespace
    version, probe = cluster.read("/version"), cluster.try_create(GPU_SHARES, WEBHOOK_PROBE)
    nodes, gpu_nodes, namespace = cluster.items(NODES), cluster.items(GPU_NODES), cluster.find(NAMESPACES, own)
    pods = cluster.items(PODS, own, labelSelector=OURS)
    workloads = [(kind, cluster.items(resource, own, labelSelector=OURS)) for kind, resource in WORKLOADS.items()]
    shares = cluster.items(GPU_SHARES)
    failures = [cluster.items(CORE_EVENTS, own, fieldSelector=f"reason={reason}") for reason in FAILURES]
    policies = cluster.items(POLICIES)
    agent = _agent(pods.result())
    metrics = metrics_of(cluster, agent) if agent is not None else None
    from gpushare.api.gpunode import GpuNode  # while kubectl asks
    from gpushare.kubectl.views.check import Facts, check
    from gpushare.kubectl.views.objects import read

    labels = (namespace.result() or {"metadata": {}})["metadata"].get("labels") or {}
    found_policies, webhook = optional(policies), None
    try:
        probe.result()
    except KubeError as error:
        webhook = str(error)
    facts = Facts(
        version=str(version.result().get("gitVersion", "")),
        webhook=webhook,
        policies=None if found_policies is None else tuple(listed["metadata"]["name"] for listed in found_policies),
        enforced=labels.get("pod-security.kubernetes.io/enforce", ""),
        pods=tuple(pods.result()),
        nodes=tuple(nodes.result()),
        gpu_nodes={node.name: node for node in read(GpuNode, optional(gpu_nodes) or ())},
        workloads=tuple({**listed, "kind": kind} for kind, asked in workloads for listed in optional(asked) or ()),
        shares=tuple(optional(shares) or ()),
        failures=tuple(event for listed in failures for event in optional(listed) or ()),
        namespace=own,
        metrics=_access(cluster, own, agent, metrics) if agent is not None and metrics is not None else None,
        metrics_port=metrics_port(agent) if agent is not None else 0,
    )
    return check(facts, args.node)


def _agent(pods: Sequence[Object]) -> Object | None:
    """One that runs, if any does."""
    from gpushare.kubectl.views.objects import is_true  # while kubectl asks

    labelled = [
        pod for pod in pods if (pod["metadata"].get("labels") or {}).get("app.kubernetes.io/component") == "agent"
    ]
    return next((pod for pod in labelled if is_true(pod, "Ready")), None)


def _access(cluster: Cluster, own: str, agent: Object, metrics: "Future[str]") -> "MetricsAccess | None":
    from gpushare.kubectl.views.metrics_access import MetricsAccess

    node = agent["spec"].get("nodeName", "")
    try:
        metrics.result()
    except (KubeError, UnreachableError) as error:
        if isinstance(error, KubeError) and error.status == HTTPStatus.FORBIDDEN:
            return None
        policies = optional(cluster.items(NETWORK_POLICIES, own, fieldSelector=f"metadata.name={AGENT_POLICY}"))
        slices = optional(cluster.items(ENDPOINT_SLICES, "default", labelSelector=API_SERVER))
        return MetricsAccess(node, str(error), next(iter(policies or ()), None), slices or ())
    return MetricsAccess(node)
