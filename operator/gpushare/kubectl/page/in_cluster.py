"""`gpushare ui`: the page of `kubectl gpushare ui`, served by a pod with the rights of its ServiceAccount.

It asks the agents for their metrics itself, at their pods' addresses: the right to proxy to every pod would be more.
"""

import argparse
import asyncio
import os
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException

from gpushare.http import probes
from gpushare.kubectl.api import MOST_METRICS_BYTES, of_a_pod
from gpushare.kubectl.failures import UnreachableError
from gpushare.kubectl.page.cluster.follow import following
from gpushare.kubectl.page.cluster.scrapes import AgentPod
from gpushare.kubectl.page.serving.pages import Pages
from gpushare.kubectl.page.serving.proxied import serving_in_cluster
from gpushare.process import event_loop
from gpushare.process.event_loop import on_end_signal

SCRAPE_SECONDS = 5.0
LOCAL_NAMES = ("localhost", "127.0.0.1")
"""The names under which `kubectl port-forward` leads here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--namespace",
        default=os.environ.get("GPUSHARE_NAMESPACE", "gpushare-system"),
        help="namespace of gpushare (env GPUSHARE_NAMESPACE); default: gpushare-system",
    )
    parser.add_argument(
        "--host", action="append", default=[], help="name under which browsers reach the page, besides localhost"
    )
    parser.add_argument("--port", type=int, default=8090, help="HTTP port of the page; default: 8090")
    parser.add_argument("--probe-port", type=int, default=8083, help="HTTP port of /healthz and /readyz; default: 8083")


def run(args: argparse.Namespace) -> int:
    api = of_a_pod(os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ.get("KUBERNETES_SERVICE_PORT", "443")))
    with following(api, args.namespace, None, ask_agent) as followed:
        about = {"cluster": "", "namespace": "", "systemNamespace": args.namespace}
        pages = Pages(followed.feed, followed.looking, followed.pod, about, (*LOCAL_NAMES, *args.host))
        event_loop.run(_serve(pages, args.port, args.probe_port))
    return 0


async def _serve(pages: Pages, port: int, probe_port: int) -> None:
    stop = asyncio.Event()
    on_end_signal(stop.set)
    checks: dict[str, probes.Check] = {"/healthz": probes.well, "/readyz": probes.well}
    async with serving_in_cluster(pages, port), probes.serve(probe_port, checks):
        await stop.wait()


def ask_agent(agent: AgentPod) -> str:
    """Raises UnreachableError."""
    if not agent.address:
        raise UnreachableError("the agent's pod has no address yet")
    connection = HTTPConnection(agent.address, agent.port, timeout=SCRAPE_SECONDS)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read(MOST_METRICS_BYTES + 1)
    except (OSError, HTTPException) as error:
        raise UnreachableError(f"the agent does not answer: {error}") from None
    finally:
        connection.close()
    if answer.status != HTTPStatus.OK or len(body) > MOST_METRICS_BYTES:
        raise UnreachableError(f"the agent answers with status {answer.status} and {len(body)} bytes")
    return body.decode(errors="replace")
