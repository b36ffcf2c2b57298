"""Asks each agent for its metrics through the API server's pod proxy: the same figures as in alerts, seconds old.

That needs the right to `get` `pods/proxy` in gpushare's namespace. Who has it not gets what his pods' own objects say.
"""

import argparse
from concurrent.futures import Future
from http import HTTPStatus

from gpushare.kube.resources import GPU_NODES, PODS, RESOURCE_CLAIMS, KubeError, Object
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster, optional
from gpushare.kubectl.commands.scope import chosen_namespace, require_share
from gpushare.kubectl.failures import UnreachableError, WrongInputError
from gpushare.kubectl.output.report import Report

AGENTS = "app.kubernetes.io/name=gpushare,app.kubernetes.io/component=agent"
LOOK = "`kubectl gpushare check` says whether a NetworkPolicy keeps the API server out"
NO_METRICS = "the agent serves no metrics (chart value metrics.enabled)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_all_namespaces(parser)
    parser.add_argument("--share", help="show clients of this GpuShare alone")
    options.add_output(parser, names=True, watch=True)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    namespace, known = chosen_namespace(cluster, args), require_share(cluster, args.share)
    nodes = cluster.items(GPU_NODES)
    agents = optional(cluster.items(PODS, args.system_namespace, labelSelector=AGENTS))
    if agents is None:
        known()
        return _granted(cluster, namespace(), args)
    if not agents:
        raise WrongInputError(
            f'no agent of gpushare in namespace "{args.system_namespace}": is it installed in another one '
            "(--system-namespace)?"
        )
    asked = [(agent["spec"].get("nodeName", ""), metrics_of(cluster, agent)) for agent in agents]
    from gpushare.api.gpunode import GpuNode  # while kubectl asks
    from gpushare.kubectl.views.objects import read
    from gpushare.kubectl.views.top import Scrape, top

    def scrape(node: str, answer: "Future[str] | None") -> Scrape:
        if answer is None:
            return Scrape(node, "", NO_METRICS)
        try:
            return Scrape(node, answer.result())
        except (KubeError, UnreachableError) as error:
            return Scrape(node, "", not_reached(error))

    known()
    if all(answer is not None and _is_forbidden(answer) for _, answer in asked):
        return _granted(cluster, namespace(), args)
    scrapes = [scrape(node, answer) for node, answer in asked]
    return top(scrapes, read(GpuNode, optional(nodes) or ()), namespace(), args.share)


def _granted(cluster: Cluster, namespace: str | None, args: argparse.Namespace) -> Report:
    pods, claims = cluster.items(PODS, namespace), cluster.items(RESOURCE_CLAIMS, namespace)
    from gpushare.kubectl.views.top import granted  # while kubectl asks

    right = right_to_metrics(args.system_namespace)
    note = f"memory used, processes and slots held in vain are not shown: they need {right}"
    return granted(pods.result(), optional(claims) or (), namespace, args.share, note)


def right_to_metrics(system: str) -> str:
    """What reading the agents' metrics in namespace `system` takes."""
    return f"the right to list pods and to get pods/proxy in namespace {system}"


def _is_forbidden(asked: "Future[str]") -> bool:
    error = asked.exception()
    return isinstance(error, KubeError) and error.status == HTTPStatus.FORBIDDEN


def metrics_of(cluster: Cluster, pod: Object) -> "Future[str] | None":
    """What an agent's pod serves; None where the agent serves none."""
    port, metadata = metrics_port(pod), pod["metadata"]
    return cluster.proxied(metadata["namespace"], metadata["name"], port, "metrics") if port else None


def metrics_port(pod: Object) -> int:
    """0: the agent serves none."""
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports") or ()]
    return next((port["containerPort"] for port in ports if port.get("name") == "metrics"), 0)


def not_reached(error: Exception) -> str:
    """Why an agent's figures are not known; with where to look, if that is not said in the error."""
    answered = isinstance(error, KubeError) and error.status < HTTPStatus.INTERNAL_SERVER_ERROR
    return f"the agent was not reached: {error}" + ("" if answered else f"; {LOOK}")
