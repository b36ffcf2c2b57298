"""Asks for everything that `views.check` judges. The webhook is really called, by a dry run that it must refuse."""

import argparse

from gpushare.api.webhook_probe import WEBHOOK_PROBE
from gpushare.kube.resources import (
    CORE_EVENTS,
    DAEMON_SETS,
    DEPLOYMENTS,
    GPU_NODES,
    GPU_SHARES,
    NAMESPACES,
    NODES,
    PODS,
    POLICIES,
    KubeError,
)
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster, optional
from gpushare.kubectl.output.report import Report

WORKLOADS = {"Deployment": DEPLOYMENTS, "DaemonSet": DAEMON_SETS}
OURS = "app.kubernetes.io/name=gpushare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", nargs="?", metavar="NODE", help="check this node alone; default: all nodes with GPUs")
    options.add_output(parser, names=False, watch=False, tables=False)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    own = args.system_namespace
    version, probe = cluster.read("/version"), cluster.try_create(GPU_SHARES, WEBHOOK_PROBE)
    nodes, gpu_nodes, namespace = cluster.items(NODES), cluster.items(GPU_NODES), cluster.find(NAMESPACES, own)
    shares = cluster.items(GPU_SHARES)
    pods = cluster.items(PODS, own, labelSelector=OURS)
    workloads = [(kind, cluster.items(resource, own, labelSelector=OURS)) for kind, resource in WORKLOADS.items()]
    failures, policies = cluster.items(CORE_EVENTS, own, fieldSelector="reason=FailedCreate"), cluster.items(POLICIES)
    from gpushare.api.gpunode import GpuNode  # while kubectl asks
    from gpushare.api.gpushare import GpuShare
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
        shares=tuple(read(GpuShare, optional(shares) or ())),
        workloads=tuple({**listed, "kind": kind} for kind, asked in workloads for listed in optional(asked) or ()),
        failures=tuple(optional(failures) or ()),
        namespace=own,
    )
    return check(facts, args.node)
