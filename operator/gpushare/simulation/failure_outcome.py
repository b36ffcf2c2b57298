"""Who dies with whom on one GPU: the only place where that is decided. Pure.

Measured on an H200 (driver 580): a fatal fault in one MPS client ends all clients of that server, and the Xid names an
innocent; a device assert ends its own process alone; a client that dies in mid-kernel, be it by a normal exit that did
not destroy its context, takes its neighbours along, or poisons the server for the next client where it has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

OUT_OF_MEMORY = 2
UNAVAILABLE = 46
NO_DEVICE = 100
ILLEGAL_ADDRESS = 700
ASSERT = 710
LAUNCH_FAILURE = 719
MPS_CONNECTION_FAILED = 805
MPS_RPC_FAILURE = 806
MPS_SERVER_NOT_READY = 807
MPS_CLIENT_TERMINATED = 810
UNKNOWN = 999

FATAL_REMAINING_MS = 8.0
"""A client that dies with more kernel time left than this takes its neighbours along. Measured: less than ~6 ms never
did, more than ~10 ms did; between the two is not measured, and the middle is assumed."""


class FailureCause(StrEnum):
    ILLEGAL_ADDRESS = "illegal_address"
    TRAP = "trap"
    ASSERT = "assert"
    DEATH = "death"
    TERMINATED = "terminated"
    SERVER_LOST = "server_lost"


@dataclass(frozen=True, slots=True)
class Xid:
    """A line of the kernel log. `victim` is the context that it names, which is not the one to blame."""

    number: int
    victim: int


@dataclass(frozen=True, slots=True)
class FailureOutcome:
    """The CUDA error that each context gets.

    `fatal`: the server is in FAULT until its last client is gone, then ACTIVE but without the GPU. `poisoned`: it looks
    healthy, but its next client fails.
    """

    errors: dict[int, int] = field(default_factory=dict)
    fatal: bool = False
    poisoned: bool = False
    xid: Xid | None = None


def fate(cause: FailureCause, culprit: int, neighbours: Sequence[int], remaining_ms: float = 0.0) -> FailureOutcome:
    """What happens to `culprit` and its `neighbours`: contexts, by id.

    `neighbours` are the other living clients of the same MPS server, oldest first; none without MPS.
    `remaining_ms` is how long the culprit's kernels would still run. The numbers of the Xids other than 31 and all
    Xids of processes without neighbours are assumed.
    """
    everybody = [culprit, *neighbours]
    named = neighbours[0] if neighbours else culprit
    match cause:
        case FailureCause.ILLEGAL_ADDRESS:
            return FailureOutcome(dict.fromkeys(everybody, ILLEGAL_ADDRESS), fatal=True, xid=Xid(31, named))
        case FailureCause.TRAP:
            return FailureOutcome(dict.fromkeys(everybody, LAUNCH_FAILURE), fatal=True, xid=Xid(13, named))
        case FailureCause.ASSERT:
            return FailureOutcome({culprit: ASSERT}, xid=Xid(43, culprit))
        case FailureCause.DEATH if remaining_ms > FATAL_REMAINING_MS and not neighbours:
            return FailureOutcome(poisoned=True, xid=Xid(31, culprit))
        case FailureCause.DEATH if remaining_ms > FATAL_REMAINING_MS:
            return FailureOutcome(dict.fromkeys(neighbours, ILLEGAL_ADDRESS), fatal=True, xid=Xid(31, named))
        case FailureCause.DEATH:
            return FailureOutcome()
        case FailureCause.TERMINATED:
            return FailureOutcome({culprit: MPS_CLIENT_TERMINATED})
        case FailureCause.SERVER_LOST:
            return FailureOutcome(dict.fromkeys(neighbours, MPS_RPC_FAILURE))
