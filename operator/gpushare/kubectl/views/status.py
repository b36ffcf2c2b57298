"""`kubectl gpushare status`: shares, GPUs and the reasons of problems, on one screen."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpushare.api.conditions import MEMORY_PRESSURE, EventReason
from gpushare.api.gpunode import Gpu, GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.api.quantity import format_mib
from gpushare.kubectl.output.report import Column, Report, Row, Short, Table, short_uuids
from gpushare.kubectl.views.objects import gpu_state, ready_condition

SHARES = (
    Column("SHARE"),
    Column("GPUS"),
    Column("HELD", figures=True),
    Column("SLOTS", figures=True),
    Column("THREADS", dropped=2),
    Column("MEMORY", dropped=1),
    Column("READY"),
    Column("REASON"),
)
GPUS = (
    Column("NODE"),
    Column("GPU"),
    Column("INDEX", dropped=2, figures=True),
    Column("PRODUCT", dropped=1),
    Column("SHARE"),
    Column("STATE"),
    Column("HELD", figures=True),
)
SUMS = (Column("RESERVED", dropped=4), Column("LIMITS", dropped=3))
"""The sums of a GPU's containers, as parts of its memory; shown where a share lets its clients borrow."""
BORROWERS = (
    Column("BORROWER"),
    Column("GPU"),
    Column("SHARE", dropped=2),
    Column("RESERVED"),
    Column("LIMIT", dropped=1),
    Column("WHEN-FOUND"),
    Column("ENDS-AT"),
)
PROBLEMS = (Column("OBJECT"), Column("GPU", dropped=1), Column("REASON"), Column("MESSAGE", text=True))


def status(shares: Sequence[GpuShare], nodes: Sequence[GpuNode]) -> Report:
    short = short_uuids(gpu.uuid for node in nodes for gpu in node.status.gpus)
    sums = any(share.limits_memory is not None for share in shares)
    return Report(
        {"shares": [share.wire() for share in shares], "nodes": [node.wire() for node in nodes]},
        [
            Table(SHARES, [_share(share) for share in shares], "no GpuShare; create one (examples/inference.yaml)"),
            Table(
                (*GPUS, *(SUMS if sums else ())),
                [row if sums else row[: len(GPUS)] for node in nodes for row in _gpus(node, short)],
                "no GPU that an agent reports",
            ),
            Table(BORROWERS, [row for node in nodes for row in borrowers(node, short)]),
            Table(PROBLEMS, list(_problems(shares, nodes, short))),
        ],
        names=[
            *(f"gpushare.gpushare.dev/{share.name}" for share in shares),
            *(f"gpunode.gpushare.dev/{node.name}" for node in nodes),
        ],
    )


def _share(share: GpuShare) -> Row:
    state, ready = share.status, ready_condition(share)
    return (
        share.name,
        state.summary or "0/0",
        str(state.slots.used),
        str(state.slots.total),
        state.threads,
        state.memory,
        ready.status if ready else "Unknown",
        ready.reason if ready else "",
    )


def _gpus(node: GpuNode, short: Mapping[str, Short]) -> Iterator[Row]:
    daemons = {daemon.uuid: daemon for daemon in node.status.daemons}
    holders = {(holder.uuid, holder.share): holder for holder in node.status.holders}
    simulated = " (simulated)" if node.status.simulated else ""
    for gpu in node.status.gpus:
        daemon = daemons.get(gpu.uuid)
        holder = holders.get((gpu.uuid, daemon.share)) if daemon else None
        yield (
            node.name,
            short[gpu.uuid],
            str(gpu.index),
            gpu.product + simulated,
            daemon.share if daemon else "",
            gpu_state(gpu, daemon, node),
            str(len(holder.slots) if holder else 0) if daemon else "",
            _part(holder.reserved_mib if holder else None, gpu),
            _part(holder.limits_mib if holder else None, gpu),
        )


def _part(mib: int | None, gpu: Gpu) -> str:
    """A text such as `48Gi (34%)`."""
    return f"{format_mib(mib)} ({100 * mib // gpu.memory_mib}%)" if mib is not None and gpu.memory_mib else ""


def borrowers(node: GpuNode, short: Mapping[str, Short]) -> Iterator[Row]:
    """Rows of BORROWERS. What they use now is shown by `top`."""
    for borrower in node.status.borrowers:
        yield (
            f"{borrower.namespace}/{borrower.pod}",
            short.get(borrower.uuid, borrower.uuid),
            borrower.share,
            format_mib(borrower.reserved_mib),
            format_mib(borrower.limit_mib),
            format_mib(borrower.observed_mib),
            borrower.ends_at or "",
        )


def _problems(shares: Iterable[GpuShare], nodes: Iterable[GpuNode], short: Mapping[str, Short]) -> Iterator[Row]:
    for share in shares:
        ready, where = ready_condition(share), f"gpushare/{share.name}"
        if ready is not None and ready.status != "True":
            yield where, "", ready.reason, ready.message
        for group in share.status.unavailable:
            count = f"{group.count} GPUs, such as: " if group.count > 1 else ""
            yield where, "", group.reason, count + group.message
        for waiting in share.status.claims.unplaced if share.status.claims else ():
            yield f"resourceclaim/{waiting.claim}", "", EventReason.CLAIM_PENDING, waiting.message
    for node in nodes:
        for uuid, reason, message in node_problems(node):
            yield f"node/{node.name}", short.get(uuid, uuid), reason, message


def node_problems(node: GpuNode) -> Iterator[Row]:
    """(UUID or empty, reason, message). Of a silent node nothing else: what is known of it may be old."""
    if node.silence:
        yield "", EventReason.AGENT_SILENT, node.silence
        return
    for condition in node.status.conditions:
        if condition.type.endswith("Reachable") and condition.status != "True":
            yield "", condition.reason, condition.message
        if condition.type == MEMORY_PRESSURE and condition.status == "True":
            yield "", condition.reason, condition.message
    for daemon in node.status.daemons:
        if not daemon.ready:
            yield daemon.uuid, daemon.reason, daemon.message
    for finding in node.status.findings:
        yield finding.uuid, finding.reason, finding.message
