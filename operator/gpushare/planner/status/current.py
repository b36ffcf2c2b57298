"""The condition DaemonsCurrent: whether a share's MPS pods run the present image and settings."""

from collections.abc import Callable

from gpushare.api.conditions import ConditionType, ShareReason
from gpushare.api.timestamps import format_timestamp
from gpushare.messages.wording import are, count_of
from gpushare.planner.model import RefusalVerdict
from gpushare.planner.rollout import NodeRollout, Step
from gpushare.planner.status.share_summary import ShareSummary
from gpushare.planner.waiting import awaited_users

NODES_SHOWN = 3
MESSAGE_LENGTH = 2048
"""Bound of the API on a condition's message."""


def daemons_current(summary: ShareSummary) -> RefusalVerdict:
    if summary.share.deleting:
        message = "the share is being deleted: its MPS pods are not replaced any more"
        return _verdict(False, ShareReason.RELEASING, message)
    rollout = summary.rollout
    outdated = [entry for entry in rollout.entries if entry.outdated]
    failed = [entry for entry in rollout.entries if entry.step is Step.FAILED]
    stuck = [entry for entry in failed if entry.pod is not None and entry.pod.stuck]
    if stuck or (failed and outdated):
        return _verdict(False, ShareReason.ROLLOUT_STOPPED, _stopped((stuck or failed)[0], len(outdated)))
    if not outdated:
        return _verdict(True, ShareReason.DAEMONS_CURRENT, "every MPS pod runs the present image and settings")
    begun = rollout.paused | {pod.node for pod in rollout.replaced}
    under_way = [
        entry for entry in rollout.entries if entry.step in (Step.GOING, Step.COMING) or entry.node.name in begun
    ]
    head = f"{len(outdated)} of {count_of(len(rollout.entries), 'MPS pod')} {are(len(outdated))} outdated"
    if under_way:
        return _verdict(False, ShareReason.ROLLING_OUT, f"{head}; {_listed(under_way, _under_way)}")
    return _verdict(False, ShareReason.WAITING_FOR_CLIENTS, f"{head}; {_listed(outdated, _waits)}")


def _stopped(entry: NodeRollout, outdated: int) -> str:
    pod = entry.pod.name if entry.pod else ""
    rest = f"the {outdated} older ones stay as they are; " if outdated else ""
    return (
        f"the new MPS pod {pod} of node {entry.node.name} does not come up: {entry.why}; {rest}"
        "correct the image or the settings, or go back to the last ones"
    )


def _listed(entries: list[NodeRollout], line: Callable[[NodeRollout], str]) -> str:
    more = f"; and {count_of(len(entries) - NODES_SHOWN, 'more node')}" if len(entries) > NODES_SHOWN else ""
    return "; ".join(line(entry) for entry in entries[:NODES_SHOWN]) + more


def _under_way(entry: NodeRollout) -> str:
    if entry.step is Step.COMING:
        return f"node {entry.node.name}: {entry.why}"
    if entry.step is Step.GOING:
        return f"node {entry.node.name}: the old MPS pod ends"
    return f"node {entry.node.name}: it takes no new pods until its MPS pod is replaced"


def _waits(entry: NodeRollout) -> str:
    node = entry.node.name
    if entry.step is Step.OUT_OF_REACH:
        return f"node {node} is not Ready, or its agent does not report"
    if entry.idle:
        return f"node {node} is idle and waits for its turn"
    end = (
        f"until {format_timestamp(entry.deadline)} at most"
        if entry.deadline
        else "for ever, since the share has no maxWait"
    )
    return f"node {node} waits since {format_timestamp(entry.since)}, {end}, for {awaited_users(entry.records)}"


def _verdict(holds: bool, reason: ShareReason, message: str) -> RefusalVerdict:
    return RefusalVerdict(ConditionType.DAEMONS_CURRENT, "True" if holds else "False", reason, message[:MESSAGE_LENGTH])
