"""Asks for shares, GpuNodes, nodes and pods. Nothing is written, and no pod is deleted."""

import argparse

from gpushare.kube.resources import GPU_NODES, GPU_SHARES, NODES, PODS
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster, installed, optional
from gpushare.kubectl.failures import require
from gpushare.kubectl.output.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("share", nargs="?", metavar="SHARE", help="a GpuShare's name; default: all of them")
    options.add_output(parser, names=True, watch=False)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    shares, gpu_nodes = cluster.items(GPU_SHARES), cluster.items(GPU_NODES)
    nodes, pods = cluster.items(NODES), cluster.items(PODS)
    from gpushare.api.gpunode import GpuNode  # while kubectl asks
    from gpushare.api.gpushare import GpuShare
    from gpushare.kubectl.views.defragment import defragment
    from gpushare.kubectl.views.objects import read

    known = read(GpuShare, installed(shares))
    if args.share is not None:
        require("GpuShare", args.share, [share.name for share in known])
    wanted = [share for share in known if args.share in (None, share.name)]
    return defragment(wanted, read(GpuNode, installed(gpu_nodes)), optional(nodes) or (), pods.result())
