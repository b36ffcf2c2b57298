"""Asks for the pod, its events, and everything that may hold it back."""

import argparse

from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster
from gpushare.kubectl.commands.pods import AboutPod
from gpushare.kubectl.commands.scope import chosen_namespace
from gpushare.kubectl.output.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pod", metavar="POD", help="a pod, or what makes pods, such as deployment/app: then its pod that does not run"
    )
    options.add_output(parser, names=False, watch=False, tables=False)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    asked = AboutPod(cluster, chosen_namespace(cluster, args), args.pod)
    from gpushare.kubectl.views.pods.why import report, why  # while kubectl asks

    facts = asked.facts()
    return report(asked.unmade() if facts is None else why(facts))
