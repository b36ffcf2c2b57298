"""`kubectl gpushare plan FILE`: the GPUs that a GpuShare would take, refused GPUs with reasons, and their memory.

A dry run lets the API server check the share, by schema and webhook. Then the operator's own planner plans a snapshot
of the live fleet with that share in it. Nothing is written. Pure but for the clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import yaml

from gpushare.api import names
from gpushare.api.gpushare import CONTEXT_RESERVE_MIB, GpuShare, Size
from gpushare.api.quantity import format_mib
from gpushare.api.timestamps import format_timestamp
from gpushare.kube.resources import Object
from gpushare.kubectl.failures import WrongInputError
from gpushare.kubectl.output.report import Column, Report, Row, Sentences, Short, Table, short_uuids
from gpushare.kubectl.views.objects import memory_limits, read
from gpushare.planner import Snapshot
from gpushare.planner.gpu_record import GpuRecord
from gpushare.planner.plan import summary_of
from gpushare.planner.selection.fleet_index import fleet_records
from gpushare.planner.status.conditions import verdicts
from gpushare.planner.status.share_summary import ShareSummary

GPUS = (
    Column("NODE"),
    Column("GPU"),
    Column("PRODUCT", dropped=1),
    Column("OUTCOME"),
    Column("MEMORY-GRANTED", dropped=2),
)
REFUSED = (Column("REFUSED"), Column("MESSAGE", text=True))


@dataclass(frozen=True, slots=True)
class ShareOutcome:
    """The plan for one GPU. `what`: taken, kept or given back; `note`: how much of its memory is granted."""

    node: str
    uuid: str
    product: str
    what: str
    note: str


def wanted_share(text: str) -> Object:
    """The GpuShare of a YAML document. Raises WrongInputError."""
    try:
        documents = [item for item in yaml.safe_load_all(text) if item]
    except yaml.YAMLError as error:
        raise WrongInputError(f"not YAML: {error}") from None
    shares = [item for item in documents if isinstance(item, dict) and item.get("kind") == "GpuShare"]
    if len(shares) != 1:
        raise WrongInputError(f"{len(shares)} GpuShares in {len(documents)} documents: give a file with exactly one")
    share: Object = shares[0]
    if share.get("apiVersion") != names.API_VERSION or not (share.get("metadata") or {}).get("name"):
        raise WrongInputError(
            f"apiVersion {share.get('apiVersion')!r} or name missing: write {names.API_VERSION} and a name"
        )
    return {key: share[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in share}


def plan(live: Snapshot, accepted: Object) -> Report:
    """`accepted`: the share as the API server would store it. Raises WrongInputError."""
    (share,) = read(GpuShare, [_dated(accepted)])
    before = {
        record.key for records in fleet_records(live).values() for record in records if record.holder == share.name
    }
    others = tuple(other for other in live.shares if other.name != share.name)
    summary = summary_of(replace(live, shares=(*others, share)), share.name)
    fates = [
        *(_fate(record, "kept" if record.key in before else "taken", _part(share, record)) for record in summary.kept),
        *(_fate(record, "given back once idle", "") for record in (*summary.draining, *summary.releasing)),
    ]
    short = short_uuids(fate.uuid for fate in fates)
    slots = len(summary.kept) * share.slots_per_gpu
    return Report(
        {
            "share": share.name,
            "gpus": [_data(fate) for fate in fates],
            "refused": [{"reason": refusal.reason.value, "message": refusal.message} for refusal in summary.refused],
            "slots": slots,
            "memoryPerGpuMiB": None if share.whole else _promised(share),
            **({} if share.limits_memory is None or share.by_claims else {"limitsPerGpuMiB": _most(share)}),
        },
        [
            Sentences(_summary(share, summary, slots)),
            Table(GPUS, [_row(fate, short) for fate in fates]),
            Table(REFUSED, [(refusal.reason.value, refusal.message) for refusal in summary.refused]),
        ],
        code=0 if summary.kept else 1,
    )


def _fate(record: GpuRecord, what: str, note: str) -> ShareOutcome:
    return ShareOutcome(record.node.name, record.uuid, record.gpu.product if record.gpu else "", what, note)


def _part(share: GpuShare, record: GpuRecord) -> str:
    """The part of a GPU's memory that clients and MPS itself take when all slots are held; above 100 %: over-commit.

    For a share delivered by claims: how much of the memory can be claimed.
    """
    memory = record.gpu.memory_mib if record.gpu else 0
    if not memory:
        return ""
    if share.whole:
        return f"whole, {format_mib(memory)}"
    if share.by_claims:
        burst = share.claimable_burst_mib(memory)
        more = f", and {format_mib(burst)} to borrow" if burst else ""
        return f"up to {format_mib(share.claimable_mib(memory))} of {format_mib(memory)}{more}"
    limits = f", limits {100 * share.full_gpu_limits_mib / memory:.0f}%" if share.limits_memory is not None else ""
    return f"{100 * (_promised(share) + CONTEXT_RESERVE_MIB) / memory:.0f}% of {format_mib(memory)}{limits}"


def _promised(share: GpuShare) -> int:
    return share.clients.per_gpu * share.memory_default_mib


def _most(share: GpuShare) -> int:
    return share.clients.per_gpu * share.memory_limit_max_mib


def _summary(share: GpuShare, summary: ShareSummary, slots: int) -> list[tuple[str, str]]:
    clients = share.clients
    threads = clients.per_gpu * clients.threads.default
    assigned = verdicts(summary)[1]
    limits = [("Limits:   ", text) for text in [memory_limits(share)] if text]
    gpus = [
        ("Share:    ", f"{share.name}, as it would be"),
        ("GPUs:     ", f"{len(summary.kept)} of {summary.matching} that match: {assigned.message}"),
    ]
    if share.whole:
        return [*gpus, ("Whole:    ", f"{slots} to ask for, as {share.resource}")]
    if share.by_claims:
        percent = f"{clients.threads.default}% by default, {clients.threads.max}% at most"
        return [
            *gpus,
            ("Clients:  ", f"{slots} at most, {clients.per_gpu} on each GPU"),
            ("Threads:  ", f"{percent}; claims share {100 * clients.threads.overcommit}% of each GPU"),
            ("Memory:   ", f"{clients.memory.default} by default, {format_mib(share.memory_max_mib)} at most"),
            *limits,
            *(("Size:     ", f"{size.name}: {size.threads}%, {_size(size)}") for size in share.spec.sizes),
        ]
    return [
        *gpus,
        ("Slots:    ", f"{slots}, {share.slots_per_gpu} on each GPU"),
        *(("Places:   ", f"{clients.per_gpu} on each GPU; others wait") for _ in [share.queue] if share.queue),
        ("Threads:  ", f"{clients.threads.default}% each, {threads}% of a full GPU's SMs together"),
        ("Memory:   ", f"{clients.memory.default} each, {format_mib(_promised(share))} on a full GPU"),
        *limits,
    ]


def _size(size: Size) -> str:
    limit = f", {format_mib(size.memory_mib + size.burst_mib)} at most" if size.burst_mib else ""
    return format_mib(size.memory_mib) + limit


def _data(fate: ShareOutcome) -> dict[str, Any]:
    return {"node": fate.node, "uuid": fate.uuid, "product": fate.product, "what": fate.what}


def _row(fate: ShareOutcome, short: Mapping[str, Short]) -> Row:
    return fate.node, short[fate.uuid], fate.product, fate.what, fate.note


def _dated(share: Object) -> Object:
    """The share with a creation time: one that does not exist yet is the youngest."""
    created = share["metadata"].get("creationTimestamp") or format_timestamp(datetime.now(UTC))
    return {**share, "metadata": {**share["metadata"], "creationTimestamp": created}}
