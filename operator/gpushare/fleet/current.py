"""The condition DaemonsCurrent: whether a share's MPS pods run the present image and settings, or what that awaits."""

from collections.abc import Callable

from gpushare.api.conditions import ConditionType, ShareReason
from gpushare.api.timestamps import format_timestamp
from gpushare.fleet.model import RefusalVerdict
from gpushare.fleet.rollout import NodeRollout, Rollout, Step
from gpushare.fleet.share_summary import ShareSummary
from gpushare.fleet.waiting import for_whom

SEATS_TOLD = 3
MESSAGE_LENGTH = 2048
"""Bound of the API on a condition's message."""


def daemons_current(standing: ShareSummary) -> RefusalVerdict:
    if standing.share.deleting:
        message = "the share is being deleted: its MPS pods are not replaced any more"
        return _verdict(False, ShareReason.RELEASING, message)
    rollout = standing.rollout
    outdated = [seat for seat in rollout.seats if seat.outdated]
    failed = [seat for seat in rollout.seats if seat.step is Step.FAILED]
    stuck = [seat for seat in failed if seat.pod is not None and seat.pod.stuck]
    if stuck or (failed and outdated):
        return _verdict(False, ShareReason.ROLLOUT_STOPPED, _stopped((stuck or failed)[0], len(outdated)))
    if not outdated:
        return _verdict(True, ShareReason.DAEMONS_CURRENT, "every MPS pod runs the present image and settings")
    under_way = [seat for seat in rollout.seats if seat.step in (Step.GOING, Step.COMING) or _begun(seat, rollout)]
    head = f"{len(outdated)} of {len(rollout.seats)} MPS pods {'is' if len(outdated) == 1 else 'are'} outdated"
    if under_way:
        return _verdict(False, ShareReason.ROLLING_OUT, f"{head}; {_told(under_way, _under_way)}")
    return _verdict(False, ShareReason.WAITING_FOR_CLIENTS, f"{head}; {_told(outdated, _waits)}")


def _begun(seat: NodeRollout, rollout: Rollout) -> bool:
    return seat.node.name in rollout.paused or seat.pod in rollout.replaced


def _stopped(seat: NodeRollout, outdated: int) -> str:
    pod = seat.pod.name if seat.pod else ""
    rest = f"the {outdated} older ones stay as they are; " if outdated else ""
    return (
        f"the new MPS pod {pod} of node {seat.node.name} does not come up: {seat.why}; {rest}"
        "correct the image or the settings, or go back to the last ones"
    )


def _told(seats: list[NodeRollout], line: Callable[[NodeRollout], str]) -> str:
    more = f"; and {len(seats) - SEATS_TOLD} more nodes" if len(seats) > SEATS_TOLD else ""
    return "; ".join(line(seat) for seat in seats[:SEATS_TOLD]) + more


def _under_way(seat: NodeRollout) -> str:
    if seat.step is Step.COMING:
        return f"node {seat.node.name}: {seat.why}"
    if seat.step is Step.GOING:
        return f"node {seat.node.name}: the old MPS pod ends"
    return f"node {seat.node.name}: it takes no new pods until its MPS pod is replaced"


def _waits(seat: NodeRollout) -> str:
    node = seat.node.name
    if seat.step is Step.OUT_OF_REACH:
        return f"node {node} is not Ready, or its agent tells nothing"
    if seat.idle:
        return f"node {node} is idle and waits for its turn"
    end = (
        f"until {format_timestamp(seat.deadline)} at most"
        if seat.deadline
        else "for ever, since the share has no maxWait"
    )
    return f"node {node} waits since {format_timestamp(seat.since)}, {end}, for {for_whom(seat.places)} to end"


def _verdict(holds: bool, reason: ShareReason, message: str) -> RefusalVerdict:
    return RefusalVerdict(ConditionType.DAEMONS_CURRENT, "True" if holds else "False", reason, message[:MESSAGE_LENGTH])
