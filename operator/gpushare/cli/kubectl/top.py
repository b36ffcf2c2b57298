"""`kubectl gpushare top`: what each container is granted of its GPU, and what it uses of it.

The figures are the agents' metrics, read through the API server's pod proxy: the same as in alerts, a few seconds old.
That needs the right to `get` `pods/proxy` in gpushare's namespace.
"""

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gpushare.agent.status.metrics import CONTAINER, GRANTED, PROCESSES, PROCESSES_GRANTED, THREADS, USED
from gpushare.api.quantity import MIB
from gpushare.cli.kubectl.report import Report, Row, Section
from gpushare.kube.client import API_ERRORS, PODS, Kube, Object

AT_ONCE = 16
"""Agents that are scraped at a time."""
SHOWN = {USED.name, GRANTED.name, THREADS.name, PROCESSES.name, PROCESSES_GRANTED.name}
AGENTS = "app.kubernetes.io/name=gpushare,app.kubernetes.io/component=agent"


@dataclass(frozen=True, slots=True)
class Scrape:
    """One agent's metrics as text, or why there are none."""

    node: str
    text: str
    problem: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", help="show pods of this namespace only; default: all")
    parser.add_argument("--share", help="show clients of this GpuShare only")


async def run(kube: Kube, args: argparse.Namespace) -> Report:
    agents = (await kube.list_all(PODS, args.system_namespace, labelSelector=AGENTS)).get("items") or []
    slots = asyncio.Semaphore(AT_ONCE)
    scrapes = await asyncio.gather(*(_scrape(kube, agent, slots) for agent in agents))
    return top(scrapes, args.namespace, args.share)


async def _scrape(kube: Kube, pod: Object, slots: asyncio.Semaphore) -> Scrape:
    node, name = pod["spec"].get("nodeName", ""), pod["metadata"]["name"]
    ports = [
        port for it in pod["spec"]["containers"] for port in it.get("ports") or () if port.get("name") == "metrics"
    ]
    if not ports:
        return Scrape(node, "", "the agent serves no metrics (chart value metrics.enabled)")
    async with slots:
        try:
            port = ports[0]["containerPort"]
            return Scrape(node, await kube.proxied(pod["metadata"]["namespace"], name, port, "metrics"))
        except API_ERRORS as error:
            return Scrape(node, "", f"the agent was not reached: {error}")


def top(scrapes: Iterable[Scrape], namespace: str | None, share: str | None) -> Report:
    """`namespace`, `share`: only these; None: all."""
    found = [client for scrape in scrapes for client in _clients(scrape)]
    wanted = [
        client
        for client in found
        if (namespace is None or client["namespace"] == namespace) and (share is None or client["share"] == share)
    ]
    wanted.sort(key=lambda client: -client["memoryUsedMiB"])
    silent = [(scrape.node, scrape.problem) for scrape in scrapes if scrape.problem]
    columns = ("NAMESPACE", "POD", "CONTAINER", "NODE", "SHARE", "GPU", "MEMORY", "OF", "PROCESSES", "THREADS")
    return Report(
        {"clients": wanted, "unreachable": [{"node": node, "problem": problem} for node, problem in silent]},
        [
            Section("Clients", columns, [_row(client) for client in wanted], "none uses a GPU now"),
            Section("Nodes without figures", ("NODE", "REASON"), silent),
        ],
        code=1 if silent else 0,
    )


def _clients(scrape: Scrape) -> Iterator[dict[str, Any]]:
    figures: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(scrape.text):
        for sample in family.samples:
            if sample.name in SHOWN:
                figures[tuple(sample.labels[label] for label in CONTAINER)][sample.name] = sample.value
    for labels, values in figures.items():
        granted = values.get(GRANTED.name)
        yield {
            **dict(zip(CONTAINER, labels, strict=True)),
            "node": scrape.node,
            "memoryUsedMiB": int(values.get(USED.name, 0)) // MIB,
            "memoryGrantedMiB": None if granted is None else int(granted) // MIB,
            "processes": int(values.get(PROCESSES.name, 0)),
            "processesGranted": int(values[PROCESSES_GRANTED.name]) if PROCESSES_GRANTED.name in values else None,
            "threadsGrantedPercent": round(values[THREADS.name] * 100) if THREADS.name in values else None,
        }


def _row(client: dict[str, Any]) -> Row:
    used, granted = client["memoryUsedMiB"], client["memoryGrantedMiB"]
    processes, allowed = client["processes"], client["processesGranted"]
    threads = client["threadsGrantedPercent"]
    return (
        *(client[key] for key in ("namespace", "pod", "container", "node", "share", "uuid")),
        f"{used}/{granted if granted is not None else '-'} MiB",
        f"{100 * used / granted:.0f}%" if granted else "-",
        f"{processes}/{allowed if allowed is not None else '-'}",
        f"{threads}%" if threads is not None else "-",
    )
