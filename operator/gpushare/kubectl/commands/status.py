"""Asks for shares and GpuNodes."""

import argparse

from gpushare.kube.resources import GPU_NODES, GPU_SHARES
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster, installed
from gpushare.kubectl.output.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_output(parser, names=True, watch=True)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    shares, nodes = cluster.items(GPU_SHARES), cluster.items(GPU_NODES)
    from gpushare.api.gpunode import GpuNode  # while kubectl asks
    from gpushare.api.gpushare import GpuShare
    from gpushare.kubectl.views.objects import read
    from gpushare.kubectl.views.status import status

    return status(read(GpuShare, installed(shares)), read(GpuNode, installed(nodes)))
