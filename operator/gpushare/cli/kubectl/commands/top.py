"""Asks each agent for its metrics through the API server's pod proxy: the same figures as in alerts, seconds old.

That needs the right to `get` `pods/proxy` in gpushare's namespace.
"""

import argparse
from concurrent.futures import Future

from gpushare.cli.kubectl import options
from gpushare.cli.kubectl.cluster import Cluster, UnreachableError, optional
from gpushare.cli.kubectl.commands.scope import chosen_namespace, require_share
from gpushare.cli.kubectl.output.report import Report
from gpushare.cli.kubectl.wrong import WrongInputError
from gpushare.kube.resources import GPU_NODES, PODS, KubeError, Object

AGENTS = "app.kubernetes.io/name=gpushare,app.kubernetes.io/component=agent"
NO_METRICS = "the agent serves no metrics (chart value metrics.enabled)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_namespace(parser, all_of_them=True)
    parser.add_argument("--share", help="show clients of this GpuShare alone")
    options.add_output(parser, names=True, watch=True)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    namespace, known = chosen_namespace(cluster, args), require_share(cluster, args.share)
    nodes = cluster.items(GPU_NODES)
    agents = cluster.items(PODS, args.system_namespace, labelSelector=AGENTS)
    asked = [(agent["spec"].get("nodeName", ""), _metrics(cluster, agent)) for agent in agents.result()]
    if not asked:
        raise WrongInputError(
            f'no agent of gpushare in namespace "{args.system_namespace}": is it installed in another one '
            "(--system-namespace)?"
        )
    from gpushare.api.gpunode import GpuNode  # while kubectl asks
    from gpushare.cli.kubectl.views.objects import read
    from gpushare.cli.kubectl.views.top import Scrape, top

    def scrape(node: str, answer: "Future[str] | None") -> Scrape:
        if answer is None:
            return Scrape(node, "", NO_METRICS)
        try:
            return Scrape(node, answer.result())
        except (KubeError, UnreachableError) as error:
            return Scrape(node, "", f"the agent was not reached: {error}")

    scrapes = [scrape(node, answer) for node, answer in asked]
    known()
    return top(scrapes, read(GpuNode, optional(nodes) or ()), namespace(), args.share)


def _metrics(cluster: Cluster, pod: Object) -> "Future[str] | None":
    """None where the agent serves none."""
    containers = pod["spec"]["containers"]
    ports = [port for it in containers for port in it.get("ports") or () if port.get("name") == "metrics"]
    if not ports:
        return None
    metadata = pod["metadata"]
    return cluster.proxied(metadata["namespace"], metadata["name"], ports[0]["containerPort"], "metrics")
