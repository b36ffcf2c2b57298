"""Asks for the events of a namespace, and for those about shares and nodes, which Kubernetes keeps in `default`."""

import argparse

from gpushare.kube.resources import CORE_EVENTS
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster, optional
from gpushare.kubectl.commands.scope import chosen_namespace
from gpushare.kubectl.output.report import Report

CLUSTER_SCOPED = "default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_all_namespaces(parser)
    parser.add_argument("--for", dest="about", metavar="KIND/NAME", default="", help="such as pod/app or gpushare/x")
    parser.add_argument("--types", choices=("Warning",), help="Warning: no others")
    options.add_output(parser, names=False, watch=True)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    shared, chosen = cluster.items(CORE_EVENTS, CLUSTER_SCOPED), chosen_namespace(cluster, args)
    namespace = chosen()
    every = cluster.items(CORE_EVENTS, namespace)
    from gpushare.kubectl.views.events import events  # while kubectl asks
    from gpushare.kubectl.views.moments import now

    listed = every.result()
    if namespace not in (None, CLUSTER_SCOPED):
        listed = [
            *listed,
            *(event for event in optional(shared) or () if not (event.get("involvedObject") or {}).get("namespace")),
        ]
    return events(listed, now(), warnings=args.types == "Warning", about=args.about)
