"""`kubectl gpushare top`: what each container is granted of its GPU and uses of it, and who holds a slot in vain."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gpushare.api.gpunode import GpuNode
from gpushare.api.quantity import MIB
from gpushare.cli.kubectl.output.report import Column, Report, Row, Short, Table, short_uuids

CONTAINER = ("namespace", "pod", "container", "share", "uuid")
USED = "gpushare_container_memory_used_bytes"
GRANTED = "gpushare_container_memory_granted_bytes"
THREADS = "gpushare_container_threads_granted_ratio"
PROCESSES = "gpushare_container_processes"
PROCESSES_GRANTED = "gpushare_container_processes_granted"
SHOWN = {USED, GRANTED, THREADS, PROCESSES, PROCESSES_GRANTED}
"""The agent's metrics (docs/metrics.md): a user's machine need not have the agent's packages to read them."""

CLIENTS = (
    Column("NAMESPACE"),
    Column("POD"),
    Column("CONTAINER", dropped=5),
    Column("NODE", dropped=4),
    Column("SHARE", dropped=1),
    Column("GPU"),
    Column("MEMORY", figures=True),
    Column("GRANT", figures=True),
    Column("%", figures=True),
    Column("PROCS", dropped=2),
    Column("THREADS", dropped=3, figures=True),
)
IDLE = (
    Column("NODE"),
    Column("GPU"),
    Column("SHARE"),
    Column("HELD", figures=True),
    Column("CLIENTS", figures=True),
    Column("IDLE-PODS", text=True),
)
SILENT = (Column("NODE-WITHOUT-FIGURES"), Column("REASON", text=True))


@dataclass(frozen=True, slots=True)
class Scrape:
    """One agent's metrics as text, or why there are none."""

    node: str
    text: str
    problem: str = ""


def top(
    scrapes: Sequence[Scrape], nodes: Sequence[GpuNode], namespace: str | None = None, share: str | None = None
) -> Report:
    """`namespace`, `share`: only these; None: all. `nodes`: for what is held; empty where they cannot be read."""
    found = [client for scrape in scrapes for client in _clients(scrape)]
    wanted = [
        client
        for client in found
        if (namespace is None or client["namespace"] == namespace) and (share is None or client["share"] == share)
    ]
    wanted.sort(key=lambda client: -client["memoryUsedMiB"])
    silent = [(scrape.node, scrape.problem) for scrape in scrapes if scrape.problem]
    read = {scrape.node for scrape in scrapes if not scrape.problem}
    idle = [it for it in _idle(nodes, found, read) if share is None or it["share"] == share]
    if namespace is not None:
        own = f"{namespace}/"
        idle = [it | {"pods": [pod for pod in it["pods"] if pod.startswith(own)]} for it in idle]
        idle = [it for it in idle if it["pods"]]
    short = short_uuids(uuid for it in (*found, *idle) for uuid in [it["uuid"]])
    columns = [column for column in CLIENTS if namespace is None or column.name != "NAMESPACE"]
    return Report(
        {
            "clients": wanted,
            "idle": idle,
            "unreachable": [{"node": node, "problem": problem} for node, problem in silent],
        },
        [
            Table(
                columns, [_row(client, short)[len(CLIENTS) - len(columns) :] for client in wanted], _nobody(namespace)
            ),
            Table(IDLE, [_idle_row(it, short) for it in idle]),
            Table(SILENT, silent),
        ],
        code=1 if silent else 0,
        names=[f"pod/{name}" for name in dict.fromkeys(client["pod"] for client in wanted)],
    )


def _nobody(namespace: str | None) -> str:
    where = "" if namespace is None else f" in namespace {namespace}; -A looks at all"
    return f"no container uses a shared GPU{where}"


def _clients(scrape: Scrape) -> Iterator[dict[str, Any]]:
    figures: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(scrape.text):
        for sample in family.samples:
            if sample.name in SHOWN:
                figures[tuple(sample.labels[label] for label in CONTAINER)][sample.name] = sample.value
    for labels, values in figures.items():
        granted = values.get(GRANTED)
        yield {
            **dict(zip(CONTAINER, labels, strict=True)),
            "node": scrape.node,
            "memoryUsedMiB": int(values.get(USED, 0)) // MIB,
            "memoryGrantedMiB": None if granted is None else int(granted) // MIB,
            "processes": int(values.get(PROCESSES, 0)),
            "processesGranted": int(values[PROCESSES_GRANTED]) if PROCESSES_GRANTED in values else None,
            "threadsGrantedPercent": round(values[THREADS] * 100) if THREADS in values else None,
        }


def _idle(nodes: Iterable[GpuNode], clients: Iterable[dict[str, Any]], read: set[str]) -> Iterator[dict[str, Any]]:
    """GPUs where more slots are held than containers have processes. Of nodes whose figures are known alone."""
    having: Counter[tuple[str, str, str]] = Counter()
    pods: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for client in clients:
        where = client["node"], client["uuid"], client["share"]
        having[where] += 1
        pods[where].add(f"{client['namespace']}/{client['pod']}")
    for node in nodes:
        for holder in node.status.holders if node.name in read else ():
            where = node.name, holder.uuid, holder.share
            if len(holder.slots) > having[where]:
                yield {
                    "node": node.name,
                    "uuid": holder.uuid,
                    "share": holder.share,
                    "slotsHeld": len(holder.slots),
                    "clients": having[where],
                    "pods": [pod for pod in holder.pods if pod not in pods[where]],
                }


def _row(client: dict[str, Any], short: Mapping[str, Short]) -> Row:
    used, granted = client["memoryUsedMiB"], client["memoryGrantedMiB"]
    allowed, threads = client["processesGranted"], client["threadsGrantedPercent"]
    return (
        *(client[key] for key in ("namespace", "pod", "container", "node", "share")),
        short[client["uuid"]],
        f"{used}Mi",
        f"{granted}Mi" if granted is not None else "",
        f"{100 * used / granted:.0f}%" if granted else "",
        f"{client['processes']}/{allowed if allowed is not None else '-'}",
        f"{threads}%" if threads is not None else "",
    )


def _idle_row(idle: dict[str, Any], short: Mapping[str, Short]) -> Row:
    held, clients = str(idle["slotsHeld"]), str(idle["clients"])
    return idle["node"], short[idle["uuid"]], idle["share"], held, clients, ", ".join(idle["pods"])
