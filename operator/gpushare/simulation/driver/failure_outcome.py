"""Which contexts of a GPU fail together: the only place that decides it. Pure.

Measured on an H200 (driver 580): a fatal fault in one MPS client ends all clients of that server, and the Xid names an
innocent; a device assert ends its own process alone; a client that dies in mid-kernel takes its neighbours along, or
poisons the server for the next client if it has no neighbours. A normal exit that does not destroy the context counts
as such a death.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpushare.simulation.cuda_errors import (
    ASSERT,
    ILLEGAL_ADDRESS,
    LAUNCH_FAILURE,
    MPS_CLIENT_TERMINATED,
    MPS_RPC_FAILURE,
)

FATAL_REMAINING_MS = 8.0
"""A client that dies with more kernel time left than this takes its neighbours along. Measured: with less than ~6 ms it
never did, with more than ~10 ms it did. Nothing was measured between the two; the middle is assumed."""


class FailureCause(StrEnum):
    ILLEGAL_ADDRESS = "illegal_address"
    TRAP = "trap"
    ASSERT = "assert"
    DEATH = "death"
    TERMINATED = "terminated"
    SERVER_LOST = "server_lost"


@dataclass(frozen=True, slots=True)
class FailureOutcome:
    """`errors`: the CUDA error of each context that fails, by context id.

    `fatal`: the server is in FAULT until its last client has gone, then ACTIVE but without the GPU. `poisoned`: the
    server looks healthy, but its next client fails.
    """

    errors: dict[int, int] = field(default_factory=dict)
    fatal: bool = False
    poisoned: bool = False
    xid: tuple[int, int] | None = None
    """The line of the kernel log: its number, and the context that it names, which need not be the culprit."""


def outcome_of(
    cause: FailureCause, culprit: int, neighbours: Sequence[int], remaining_ms: float = 0.0
) -> FailureOutcome:
    """The outcome for `culprit` and its `neighbours`, all of them context ids.

    `neighbours`: the other living clients of the same MPS server, oldest first; none without MPS. `remaining_ms`: how
    long the culprit's kernels would still run. Assumed: the numbers of the Xids other than 31, and all Xids of
    processes without neighbours.
    """
    everybody = [culprit, *neighbours]
    named = neighbours[0] if neighbours else culprit
    match cause:
        case FailureCause.ILLEGAL_ADDRESS:
            return FailureOutcome(dict.fromkeys(everybody, ILLEGAL_ADDRESS), fatal=True, xid=(31, named))
        case FailureCause.TRAP:
            return FailureOutcome(dict.fromkeys(everybody, LAUNCH_FAILURE), fatal=True, xid=(13, named))
        case FailureCause.ASSERT:
            return FailureOutcome({culprit: ASSERT}, xid=(43, culprit))
        case FailureCause.DEATH if remaining_ms > FATAL_REMAINING_MS and not neighbours:
            return FailureOutcome(poisoned=True, xid=(31, culprit))
        case FailureCause.DEATH if remaining_ms > FATAL_REMAINING_MS:
            return FailureOutcome(dict.fromkeys(neighbours, ILLEGAL_ADDRESS), fatal=True, xid=(31, named))
        case FailureCause.DEATH:
            return FailureOutcome()
        case FailureCause.TERMINATED:
            return FailureOutcome({culprit: MPS_CLIENT_TERMINATED})
        case FailureCause.SERVER_LOST:
            return FailureOutcome(dict.fromkeys(neighbours, MPS_RPC_FAILURE))
