"""Asks for everything about one share, node or pod."""

import argparse

from gpushare.kube.resources import CORE_EVENTS, GPU_NODES, GPU_SHARES, LEASES, NODES, PODS
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster, installed, optional
from gpushare.kubectl.commands.pods import AboutPod
from gpushare.kubectl.commands.scope import chosen_namespace
from gpushare.kubectl.failures import WrongInputError, unknown
from gpushare.kubectl.output.report import Report

KINDS = {
    **dict.fromkeys(("share", "shares", "gpushare", "gpushares"), "share"),
    **dict.fromkeys(("node", "nodes", "no", "gpunode", "gpunodes"), "node"),
    **dict.fromkeys(("pod", "pods", "po"), "pod"),
}
CLUSTER_SCOPED = "default"
"""The namespace of events about objects without one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", help="share, node or pod; also KIND/NAME in one word")
    parser.add_argument("name", metavar="NAME", nargs="?")
    options.add_output(parser, names=False, watch=False, tables=False)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    written, _, name = args.kind.partition("/") if args.name is None else (args.kind, "", args.name)
    kind = KINDS.get(written.removesuffix(".gpushare.dev"))
    if kind is None:
        raise WrongInputError(f'kind "{written}" cannot be described: write share, node or pod')
    if not name:
        raise WrongInputError(f"the name of the {kind} is missing")
    return {"share": _share, "node": _node, "pod": _pod}[kind](cluster, args, name)


def _share(cluster: Cluster, args: argparse.Namespace, name: str) -> Report:
    shares, nodes, pods = cluster.items(GPU_SHARES), cluster.items(GPU_NODES), cluster.items(PODS)
    leases = cluster.items(LEASES, args.system_namespace)
    events = cluster.items(CORE_EVENTS, CLUSTER_SCOPED, fieldSelector=f"involvedObject.name={name}")
    from gpushare.api.gpunode import GpuNode  # while kubectl asks
    from gpushare.api.gpushare import GpuShare
    from gpushare.kubectl.views.describe import describe_share
    from gpushare.kubectl.views.events import of_object
    from gpushare.kubectl.views.leases import operator_silence
    from gpushare.kubectl.views.moments import now
    from gpushare.kubectl.views.objects import read

    known = {share.name: share for share in read(GpuShare, installed(shares))}
    if name not in known:
        raise unknown("GpuShare", name, known)
    own = of_object(optional(events) or (), "GpuShare", known[name].metadata.uid)
    silence = operator_silence(optional(leases) or (), cluster.time())
    return describe_share(known[name], read(GpuNode, installed(nodes)), optional(pods), own, now(), silence)


def _node(cluster: Cluster, args: argparse.Namespace, name: str) -> Report:
    nodes, gpu_nodes = cluster.items(NODES), cluster.items(GPU_NODES)
    events = cluster.items(CORE_EVENTS, CLUSTER_SCOPED, fieldSelector=f"involvedObject.name={name}")
    from gpushare.api.gpunode import GpuNode  # while kubectl asks
    from gpushare.kubectl.views.describe import describe_node
    from gpushare.kubectl.views.events import of_object
    from gpushare.kubectl.views.moments import now
    from gpushare.kubectl.views.objects import read

    gpu_nodes_by_name = {node.name: node for node in read(GpuNode, installed(gpu_nodes))}
    known = [listed["metadata"]["name"] for listed in optional(nodes) or ()]
    if name not in gpu_nodes_by_name:
        if name in known:
            raise WrongInputError(
                f'no agent of gpushare reports on node "{name}", so there is no GpuNode; kubectl gpushare check {name} '
                "looks for the reason"
            )
        raise unknown("node", name, [*known, *gpu_nodes_by_name])
    own = of_object(optional(events) or (), "GpuNode", gpu_nodes_by_name[name].metadata.uid)
    return describe_node(gpu_nodes_by_name[name], own, now())


def _pod(cluster: Cluster, args: argparse.Namespace, name: str) -> Report:
    asked = AboutPod(cluster, chosen_namespace(cluster, args), name)
    from gpushare.kubectl.views.describe import describe_pod  # while kubectl asks
    from gpushare.kubectl.views.moments import now
    from gpushare.kubectl.views.pods.why import report

    facts = asked.facts()
    return report(asked.unmade()) if facts is None else describe_pod(facts, now())
