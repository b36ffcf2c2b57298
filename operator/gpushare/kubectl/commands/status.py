"""Asks for shares, GpuNodes, and the Leases that say whether their writers are there."""

import argparse

from gpushare.kube.resources import GPU_NODES, GPU_SHARES, LEASES
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster, installed, optional
from gpushare.kubectl.output.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_output(parser, names=True, watch=True)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    shares, nodes = cluster.items(GPU_SHARES), cluster.items(GPU_NODES)
    leases = cluster.items(LEASES, args.system_namespace)
    from gpushare.api.gpunode import GpuNode  # while kubectl asks
    from gpushare.api.gpushare import GpuShare
    from gpushare.kubectl.views.objects import read
    from gpushare.kubectl.views.status import status

    known = optional(leases) or ()
    return status(read(GpuShare, installed(shares)), read(GpuNode, installed(nodes)), known, cluster.time())
