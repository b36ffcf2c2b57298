"""`kubectl gpushare status`: shares, GPUs and the reasons of problems, on one screen. Pure except for `run`."""

import argparse
from collections.abc import Iterable, Iterator, Sequence

from gpushare.api.conditions import ConditionType, EventReason
from gpushare.api.gpunode import DaemonStatus, Finding, Gpu, GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.api.meta import Condition
from gpushare.cli.kubectl.report import Report, Row, Section
from gpushare.kube.client import GPU_NODES, GPU_SHARES, Kube


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no arguments of its own."""


async def run(kube: Kube, args: argparse.Namespace) -> Report:
    shares = [GpuShare.model_validate(item) for item in (await kube.list_all(GPU_SHARES))["items"]]
    nodes = [GpuNode.model_validate(item) for item in (await kube.list_all(GPU_NODES))["items"]]
    return status(shares, nodes)


def status(shares: Sequence[GpuShare], nodes: Sequence[GpuNode]) -> Report:
    names = ("NAME", "GPUS", "SLOTS HELD", "THREADS", "MEMORY", "READY", "REASON")
    gpus = ("NODE", "GPU", "PRODUCT", "SHARE", "STATE", "SLOTS HELD")
    return Report(
        {"shares": [share.wire() for share in shares], "nodes": [node.wire() for node in nodes]},
        [
            Section(
                "GpuShares", names, [_share(share) for share in shares], "none; create one (examples/inference.yaml)"
            ),
            Section("GPUs", gpus, [row for node in nodes for row in _gpus(node)], "none that an agent reports"),
            Section("Problems", ("WHERE", "REASON", "MESSAGE"), list(_problems(shares, nodes))),
        ],
    )


def _share(share: GpuShare) -> Row:
    state, ready = share.status, _ready(share)
    return (
        share.name,
        state.summary or "0/0",
        f"{state.slots.used}/{state.slots.total}",
        state.threads,
        state.memory,
        ready.status if ready else "Unknown",
        ready.reason if ready else "",
    )


def _gpus(node: GpuNode) -> Iterator[Row]:
    daemons = {daemon.uuid: daemon for daemon in node.status.daemons}
    held = {(holder.uuid, holder.share): len(holder.slots) for holder in node.status.holders}
    simulated = " (simulated)" if node.status.simulated else ""
    for gpu in node.status.gpus:
        daemon = daemons.get(gpu.uuid)
        yield (
            node.name,
            f"{gpu.index} {gpu.uuid}",
            gpu.product + simulated,
            daemon.share if daemon else "",
            _state(gpu, daemon, node),
            str(held.get((gpu.uuid, daemon.share), 0)) if daemon else "",
        )


def _state(gpu: Gpu, daemon: DaemonStatus | None, node: GpuNode) -> str:
    if node.silence:
        return "Unknown"
    if gpu.lost:
        return "Lost"
    return daemon.reason if daemon else "Free"


def _problems(shares: Iterable[GpuShare], nodes: Iterable[GpuNode]) -> Iterator[Row]:
    for share in shares:
        ready = _ready(share)
        if ready is not None and ready.status != "True":
            yield f"GpuShare {share.name}", ready.reason, ready.message
        for group in share.status.unavailable:
            yield f"GpuShare {share.name}", f"{group.count} {group.reason}", group.message
        for waiting in share.status.claims.unplaced if share.status.claims else ():
            yield f"ResourceClaim {waiting.claim}", EventReason.CLAIM_PENDING, waiting.message
    for node in nodes:
        where = f"node {node.name}"
        if node.silence:
            yield where, EventReason.AGENT_SILENT, node.silence
            continue  # what else is known of it may be old
        for condition in node.status.conditions:
            if condition.type.endswith("Reachable") and condition.status != "True":
                yield where, condition.reason, condition.message
        for daemon in node.status.daemons:
            if not daemon.ready:
                yield f"{where}, GPU {daemon.uuid}", daemon.reason, daemon.message
        yield from (_finding(where, finding) for finding in node.status.findings)


def _finding(where: str, finding: Finding) -> Row:
    return f"{where}, GPU {finding.uuid}", finding.reason, finding.message


def _ready(share: GpuShare) -> Condition | None:
    return next((it for it in share.status.conditions if it.type == ConditionType.READY), None)
