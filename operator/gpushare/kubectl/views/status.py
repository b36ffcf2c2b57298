"""`kubectl gpushare status`: shares, GPUs and the reasons of problems, on one screen."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from gpushare.api.conditions import MEMORY_PRESSURE, EventReason, GpuReason
from gpushare.api.gpunode import Gpu, GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.api.names import OPERATOR_LEASE
from gpushare.api.quantity import format_mib
from gpushare.kube.resources import Object
from gpushare.kubectl.output.report import Column, Report, Row, Short, Table, short_uuids
from gpushare.kubectl.output.table import cell_text
from gpushare.kubectl.views.leases import OPERATOR_SILENT, operator_silence, with_silent_agents
from gpushare.kubectl.views.objects import gpu_state, ready_condition, troubles
from gpushare.kubectl.views.places import PLACES, places_rows
from gpushare.messages.wording import count_of

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
EPOCH = datetime.fromtimestamp(0, UTC)
PROBLEMS = (Column("OBJECT"), Column("GPU", dropped=1), Column("REASON"), Column("MESSAGE", text=True))


LAYOUTS = (
    GpuReason.PER_NODE_REACHED,
    GpuReason.PRODUCT_MISMATCH,
    GpuReason.HELD_BY_SHARE,
    GpuReason.HELD_BY_NVIDIA_PLUGIN,
    GpuReason.HELD_BY_NVIDIA_DRA,
    GpuReason.MIG_ENABLED,
    GpuReason.COMPUTE_CAPABILITY_TOO_LOW,
)
"""Reasons for which somebody wants it so, or nobody can change it: no problem of a share that is Ready."""


def status(
    shares: Sequence[GpuShare], nodes: Sequence[GpuNode], leases: Sequence[Object] = (), at: datetime = EPOCH
) -> Report:
    """`leases`: of gpushare's own namespace, none where they cannot be read; `at`: when they were. What is held is
    counted from the nodes' reports, for a share as for a GPU, so that all figures are of one moment."""
    silence = operator_silence(leases, at)
    current = with_silent_agents(nodes, leases, at) if silence else nodes
    short = short_uuids(gpu.uuid for node in nodes for gpu in node.status.gpus)
    sums = any(share.limits_memory is not None for share in shares)
    held: Counter[str] = Counter()
    for holder in (holder for node in nodes for holder in node.status.holders):
        held[holder.share] += len(holder.slots)
    problems = list(_problems(shares, current, short, silence))
    return Report(
        {
            "shares": [share.wire() for share in shares],
            "nodes": [node.wire() for node in nodes],
            "problems": [
                {"object": where, "gpu": cell_text(gpu, wide=True) if gpu else "", "reason": reason, "message": message}
                for where, gpu, reason, message in problems
            ],
        },
        [
            Table(
                SHARES,
                [_share(share, held[share.name], silence) for share in shares],
                "no GpuShare; create one (examples/inference.yaml)",
            ),
            Table(
                (*GPUS, *(SUMS if sums else ())),
                [row if sums else row[: len(GPUS)] for node in current for row in _gpus(node, short)],
                "no GPU that an agent reports",
            ),
            Table(PLACES, list(places_rows(current, short))),
            Table(BORROWERS, [row for node in nodes for row in borrowers(node, short)]),
            Table(PROBLEMS, problems),
        ],
        code=1 if problems else 0,
        names=[
            *(f"gpushare.gpushare.dev/{share.name}" for share in shares),
            *(f"gpunode.gpushare.dev/{node.name}" for node in nodes),
        ],
    )


def _share(share: GpuShare, held: int, silence: str) -> Row:
    state, ready = share.status, ready_condition(share)
    return (
        share.name,
        state.summary or "0/0",
        str(held),
        str(state.slots.total),
        state.threads,
        state.memory,
        ready.status if ready and not silence else "Unknown",
        OPERATOR_SILENT if silence else ready.reason if ready else "",
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


def _problems(
    shares: Iterable[GpuShare], nodes: Iterable[GpuNode], short: Mapping[str, Short], silence: str
) -> Iterator[Row]:
    """Each once: what a share only repeats of a node, or of its own condition, refers to that or is left out."""
    of_nodes = [(f"node/{node.name}", *problem) for node in nodes for problem in node_problems(node)]
    if silence:
        yield f"lease/{OPERATOR_LEASE}", "", OPERATOR_SILENT, silence
    for share in shares:
        ready, where = ready_condition(share), f"gpushare/{share.name}"
        told = ""
        if ready is not None and ready.status != "True" and not silence:
            told = ready.message
            yield where, "", ready.reason, _referring(told, of_nodes)
        for group in share.status.unavailable:
            is_said = group.message in told or any(text and text in group.message for *_, text in of_nodes)
            if group.reason in LAYOUTS or is_said:
                continue
            count = f"{count_of(group.count, 'GPU')}, such as: " if group.count > 1 else ""
            yield where, "", group.reason, count + group.message
        for waiting in share.status.claims.unplaced if share.status.claims else ():
            yield f"resourceclaim/{waiting.claim}", "", EventReason.CLAIM_PENDING, waiting.message
    for where, uuid, reason, message in of_nodes:
        yield where, short.get(uuid, uuid), reason, message


def _referring(message: str, of_nodes: Iterable[Row]) -> str:
    for where, _, _, text in of_nodes:
        if text:
            message = message.replace(text, f"see {where}")
    return message


def node_problems(node: GpuNode) -> Iterator[Row]:
    """(UUID or empty, reason, message). Of a silent node nothing else: what is known of it may be old."""
    if node.silence:
        yield "", EventReason.AGENT_SILENT, node.silence
        return
    for condition in troubles(node):
        yield "", condition.reason, condition.message
    for condition in node.status.conditions:
        if condition.type == MEMORY_PRESSURE and condition.status == "True":
            yield "", condition.reason, condition.message
    for daemon in node.status.daemons:
        if not daemon.ready:
            yield daemon.uuid, daemon.reason, daemon.message
    for finding in node.status.findings:
        yield finding.uuid, finding.reason, finding.message
