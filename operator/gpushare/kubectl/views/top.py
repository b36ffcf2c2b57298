"""`kubectl gpushare top`: what each container is granted of its GPU and uses of it, and who holds a slot in vain.

Who may not read the agents' metrics gets the grants of the pods that he may list: `granted`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.api import names
from gpushare.api.gpunode import GpuNode
from gpushare.api.quantity import MIB, parse_quantity
from gpushare.grant.environment import grant_from_environment
from gpushare.kube.claims import allocation_results, requested_classes
from gpushare.kube.pods import (
    Container,
    ContainerStatus,
    container_statuses,
    containers,
    environment,
    is_running,
    limits,
)
from gpushare.kube.resources import Object
from gpushare.kubectl.output.report import Column, Report, Row, Short, Table, short_uuids
from gpushare.kubectl.views.moments import duration
from gpushare.kubectl.views.places import PLACES, places_rows

CONTAINER = ("namespace", "pod", "container", "share", "uuid")
USED = "gpushare_container_memory_used_bytes"
GRANTED = "gpushare_container_memory_granted_bytes"
LIMIT = "gpushare_container_memory_limit_bytes"
BORROWED = "gpushare_container_memory_borrowed_bytes"
THREADS = "gpushare_container_threads_granted_ratio"
PROCESSES = "gpushare_container_processes"
PROCESSES_GRANTED = "gpushare_container_processes_granted"
ATTACHED = "gpushare_container_attached_seconds"
LAST_ATTACHED = "gpushare_container_last_attached_seconds"
ACTIVE = "gpushare_container_active_seconds_total"
GAVE_WAY = "gpushare_container_gave_way_seconds_total"
SHOWN = {
    USED, GRANTED, LIMIT, BORROWED, THREADS, PROCESSES, PROCESSES_GRANTED, ATTACHED, LAST_ATTACHED, ACTIVE, GAVE_WAY,
}  # fmt: skip
"""The agent's metrics (docs/metrics.md): a user's machine need not have the agent's packages to read them."""

NAMESPACE_COLUMN = Column("NAMESPACE")
ATTACHED_COLUMN = Column("ATTACHED", dropped=2)
BORROWING = (Column("LIMIT", figures=True), Column("BORROWED", figures=True))
"""Shown where a container may borrow."""
CLASSES = (Column("CLASS"), Column("ACTIVE", figures=True), Column("GAVE-WAY", figures=True))
"""Shown where a container has a class. Times: as its processes say, since the agent looks."""
CLIENTS = (
    NAMESPACE_COLUMN,
    Column("POD"),
    Column("CONTAINER", dropped=6),
    Column("NODE", dropped=5),
    Column("SHARE", dropped=1),
    Column("GPU"),
    Column("MEMORY", figures=True),
    Column("GRANT", figures=True),
    Column("%", figures=True),
    *BORROWING,
    Column("PROCS", dropped=3),
    Column("THREADS", dropped=4, figures=True),
    *CLASSES,
    ATTACHED_COLUMN,
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
    clients = [client for scrape in scrapes for client in _clients(scrape)]
    wanted = [
        client
        for client in clients
        if (namespace is None or client["namespace"] == namespace) and (share is None or client["share"] == share)
    ]
    wanted.sort(key=lambda client: -client["memoryUsedMiB"])
    silent = [(scrape.node, scrape.problem) for scrape in scrapes if scrape.problem]
    read = {scrape.node for scrape in scrapes if not scrape.problem}
    idle = [row for row in _idle(nodes, clients, read) if share is None or row["share"] == share]
    queued = [node for node in nodes if namespace is None]
    if namespace is not None:
        own = f"{namespace}/"
        idle = [row | {"pods": [pod for pod in row["pods"] if pod.startswith(own)]} for row in idle]
        idle = [row for row in idle if row["pods"]]
    uuids = [row["uuid"] for row in (*clients, *idle)]
    short = short_uuids([*uuids, *(item.uuid for node in queued for item in node.status.places)])
    left_out = _left_out(wanted, namespace)
    columns = [column for column in CLIENTS if column not in left_out]
    return Report(
        {
            "clients": wanted,
            "idle": idle,
            "places": [
                {"node": node.name, **item.wire()}
                for node in queued
                for item in node.status.places
                if share is None or item.share == share
            ],
            "unreachable": [{"node": node, "problem": problem} for node, problem in silent],
        },
        [
            Table(columns, [_row(client, short, columns) for client in wanted], _nobody(namespace)),
            Table(PLACES, list(places_rows(queued, short, share))),
            Table(IDLE, [_idle_row(row, short) for row in idle]),
            Table(SILENT, silent),
        ],
        code=1 if silent else 0,
        names=[f"pod/{name}" for name in dict.fromkeys(client["pod"] for client in wanted)],
    )


def granted(
    pods: Iterable[Object], claims: Iterable[Object], namespace: str | None, share: str | None, note: str
) -> Report:
    """What the API server knows of running containers without any agent: the grant and the GPU, but no use.

    `claims`: the ResourceClaims of those namespaces; `note`: why there is no more.
    """
    by_name = {(claim["metadata"]["namespace"], claim["metadata"]["name"]): claim for claim in claims}
    clients = [client for pod in pods for client in _grants(pod, by_name) if share is None or client["share"] == share]
    clients.sort(key=lambda client: [client[key] for key in CONTAINER])
    short = short_uuids(client["uuid"] for client in clients)
    left_out = [ATTACHED_COLUMN, *_left_out(clients, namespace)]
    columns = [column for column in CLIENTS if column not in left_out]
    rows = [_row(client, short, columns) for client in clients]
    return Report(
        {"clients": clients, "idle": [], "unreachable": [], "notShown": note},
        [Table(columns, rows, _nobody(namespace))],
        names=[f"pod/{name}" for name in dict.fromkeys(client["pod"] for client in clients)],
        note=note,
    )


def _left_out(clients: Sequence[Mapping[str, Any]], namespace: str | None) -> list[Column]:
    borrows = any((client["memoryLimitMiB"] or 0) > (client["memoryGrantedMiB"] or 0) for client in clients)
    classed = any(client["class"] for client in clients)
    without = [*(() if borrows else BORROWING), *(() if classed else CLASSES)]
    return [*(() if namespace is None else (NAMESPACE_COLUMN,)), *without]


def _grants(pod: Object, claims: Mapping[tuple[str, str], Object]) -> Iterator[dict[str, Any]]:
    running = {str(status.get("name")): status for status in container_statuses(pod) if is_running(status)}
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    for container in containers(pod):
        status = running.get(str(container["name"]))
        if status is None:
            continue
        of_all = {
            "namespace": metadata["namespace"],
            "pod": metadata["name"],
            "container": container["name"],
            "node": spec.get("nodeName") or "",
            "memoryUsedMiB": None,
            "memoryBorrowedMiB": None,
            "processes": None,
            "attachedSeconds": None,
            "lastAttachedSeconds": None,
            "class": "",
            "activeSeconds": None,
            "gaveWaySeconds": None,
        }
        parts = [_slot(container, status), *(_claimed(claim) for claim in _claims_of(pod, container, claims))]
        yield from (of_all | part for part in parts if part)


def _slot(container: Container, status: ContainerStatus) -> dict[str, Any]:
    """The row of the container's slot; empty where it asks for none."""
    resource = next((item for item in limits(container) if names.share_of_resource(item)), None)
    if resource is None:
        return {}
    grant = grant_from_environment(environment(container))
    allocated = [
        str(resource_status.get("resourceID") or "").partition("::")[0]
        for item in status.get("allocatedResourcesStatus") or ()
        if item.get("name") == resource
        for resource_status in item.get("resources") or ()
    ]
    return {
        "share": names.share_of_resource(resource),
        "uuid": allocated[0] if allocated else "",
        "memoryGrantedMiB": None if grant is None else grant.memory_mib,
        "memoryLimitMiB": None if grant is None else grant.limit_mib,
        "processesGranted": None if grant is None else grant.processes,
        "threadsGrantedPercent": None if grant is None else grant.threads,
        "class": "" if grant is None or grant.client_class is None else grant.client_class.value,
    }


def _claims_of(pod: Object, container: Container, claims: Mapping[tuple[str, str], Object]) -> Iterator[Object]:
    """The container's claims for a part of one of our GPUs that have got one."""
    made = {
        item["name"]: item.get("resourceClaimName")
        for item in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    named = {
        item["name"]: item.get("resourceClaimName") for item in (pod.get("spec") or {}).get("resourceClaims") or ()
    }
    for used in (container.get("resources") or {}).get("claims") or ():
        name = named.get(used["name"]) or made.get(used["name"])
        claim = claims.get((pod["metadata"]["namespace"], str(name)))
        if claim is not None and allocation_results(claim):
            yield claim


def _claimed(claim: Object) -> dict[str, Any]:
    result = allocation_results(claim)[0]  # the agent refuses a claim with several
    parsed = (names.parse_device_class(class_name) for class_name in requested_classes(claim))
    amounts = {key: int(parse_quantity(str(value))) for key, value in (result.get("consumedCapacity") or {}).items()}
    memory = amounts.get(names.CAPACITY_MEMORY)
    return {
        "share": next((parts[0] for parts in parsed if parts), ""),
        "uuid": names.uuid_of_device(str(result.get("device") or "")),
        "memoryGrantedMiB": None if memory is None else memory // MIB,
        "memoryLimitMiB": None if memory is None else (memory + amounts.get(names.CAPACITY_MEMORY_BURST, 0)) // MIB,
        "processesGranted": amounts.get(names.CAPACITY_CLIENTS),
        "threadsGrantedPercent": amounts.get(names.CAPACITY_THREADS),
    }


def _nobody(namespace: str | None) -> str:
    where = "" if namespace is None else f" in namespace {namespace}; -A looks at all"
    return f"no container uses a shared GPU{where}"


def _clients(scrape: Scrape) -> Iterator[dict[str, Any]]:
    from prometheus_client.parser import text_string_to_metric_families  # not by who may not read metrics

    figures: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    classes: dict[tuple[str, ...], str] = {}
    gave_way: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(scrape.text):
        for sample in family.samples:
            if sample.name in SHOWN:
                where = tuple(sample.labels[label] for label in CONTAINER)
                figures[where][sample.name] = sample.value
                classes.setdefault(where, "")
                classes[where] = sample.labels.get("class") or classes[where]
                if sample.name == GAVE_WAY:
                    gave_way[where][sample.labels["protected"]] = round(sample.value, 1)
    for labels, values in figures.items():
        granted, limit = values.get(GRANTED), values.get(LIMIT)
        yield {
            **dict(zip(CONTAINER, labels, strict=True)),
            "node": scrape.node,
            "memoryUsedMiB": int(values.get(USED, 0)) // MIB,
            "memoryGrantedMiB": None if granted is None else int(granted) // MIB,
            "memoryLimitMiB": None if limit is None else int(limit) // MIB,
            "memoryBorrowedMiB": int(values[BORROWED]) // MIB if BORROWED in values else None,
            "processes": int(values.get(PROCESSES, 0)),
            "processesGranted": int(values[PROCESSES_GRANTED]) if PROCESSES_GRANTED in values else None,
            "threadsGrantedPercent": round(values[THREADS] * 100) if THREADS in values else None,
            "attachedSeconds": int(values[ATTACHED]) if ATTACHED in values else None,
            "lastAttachedSeconds": int(values[LAST_ATTACHED]) if LAST_ATTACHED in values else None,
            "class": classes[labels],
            "activeSeconds": round(values[ACTIVE], 1) if ACTIVE in values else None,
            "gaveWaySeconds": gave_way.get(labels),
        }


def _idle(nodes: Iterable[GpuNode], clients: Iterable[dict[str, Any]], read: set[str]) -> Iterator[dict[str, Any]]:
    """GPUs where more slots are held than containers have processes; without those with a queue, where that is the
    rule. Of nodes whose figures are known alone.
    """
    having: Counter[tuple[str, str, str]] = Counter()
    pods: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for client in clients:
        where = client["node"], client["uuid"], client["share"]
        having[where] += 1
        pods[where].add(f"{client['namespace']}/{client['pod']}")
    for node in nodes:
        for holder in node.status.holders if node.name in read else ():
            where = node.name, holder.uuid, holder.share
            queued = any(item.uuid == holder.uuid for item in node.status.places)
            if len(holder.slots) > having[where] and not queued:
                yield {
                    "node": node.name,
                    "uuid": holder.uuid,
                    "share": holder.share,
                    "slotsHeld": len(holder.slots),
                    "clients": having[where],
                    "pods": [pod for pod in holder.pods if pod not in pods[where]],
                }


def _row(client: dict[str, Any], short: Mapping[str, Short], columns: Sequence[Column]) -> Row:
    used, granted = client["memoryUsedMiB"], client["memoryGrantedMiB"]
    limit, borrowed = client["memoryLimitMiB"], client["memoryBorrowedMiB"]
    allowed, threads = client["processesGranted"], client["threadsGrantedPercent"]
    cells = (
        *(client[key] for key in ("namespace", "pod", "container", "node", "share")),
        short[client["uuid"]],
        f"{used}Mi" if used is not None else "",
        f"{granted}Mi" if granted is not None else "",
        f"{100 * used / granted:.0f}%" if granted and used is not None else "",
        f"{limit}Mi" if limit is not None else "",
        f"{borrowed}Mi" if borrowed is not None else "",
        "/".join("-" if number is None else str(number) for number in (client["processes"], allowed)),
        f"{threads}%" if threads is not None else "",
        client["class"],
        f"{client['activeSeconds']:.0f}s" if client["activeSeconds"] is not None else "",
        f"{sum(client['gaveWaySeconds'].values()):.0f}s" if client["gaveWaySeconds"] else "",
        _attached(client["attachedSeconds"], client["lastAttachedSeconds"]),
    )
    return tuple(cell for cell, column in zip(cells, CLIENTS, strict=True) if column in columns)


def _attached(first: int | None, last: int | None) -> str:
    """The age of one client; of several those of the first and of the latest, such as `3h..5m`."""
    ages = dict.fromkeys(duration(seconds) for seconds in (first, last) if seconds is not None)
    return "..".join(ages)


def _idle_row(idle: dict[str, Any], short: Mapping[str, Short]) -> Row:
    held, clients = str(idle["slotsHeld"]), str(idle["clients"])
    return idle["node"], short[idle["uuid"]], idle["share"], held, clients, ", ".join(idle["pods"])
