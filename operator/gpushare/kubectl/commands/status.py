"""Asks for shares and GpuNodes."""

import argparse

from gpushare.cli.kubectl import options
from gpushare.cli.kubectl.cluster import Cluster, installed
from gpushare.cli.kubectl.output.report import Report
from gpushare.kube.resources import GPU_NODES, GPU_SHARES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_output(parser, names=True, watch=True)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    shares, nodes = cluster.items(GPU_SHARES), cluster.items(GPU_NODES)
    from gpushare.api.gpunode import GpuNode  # while kubectl asks
    from gpushare.api.gpushare import GpuShare
    from gpushare.cli.kubectl.views.objects import read
    from gpushare.cli.kubectl.views.status import status

    return status(read(GpuShare, installed(shares)), read(GpuNode, installed(nodes)))
