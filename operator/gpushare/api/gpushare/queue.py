"""`spec.clients.queue`: more slots than places; a program waits for a place at its first CUDA context."""

from typing import Annotated

from pydantic import ConfigDict, Field

from gpushare.api.base import ApiModel, checked, rule
from gpushare.api.quantity import DURATION_PATTERN, Duration

MOST_QUEUED = 200
"""Slots of a GPU beyond its places."""
LEAST_IDLE, LEAST_WAIT, MOST_WAIT = "2m", "1m", "24h"


def _readable(field: str) -> str:
    """CEL: the field is a duration, which a rule may compare."""
    return f"size({field}) > 0 && {field}.matches(r'{DURATION_PATTERN}')"


class Queue(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=checked(
            rule(
                f"!({_readable('self.maxWait')}) || duration(self.maxWait) >= duration('{LEAST_WAIT}') && "
                f"duration(self.maxWait) <= duration('{MOST_WAIT}')",
                f"queue.maxWait must be {LEAST_WAIT} to {MOST_WAIT}",
                says=f"'maxWait ' + self.maxWait + ' is not within {LEAST_WAIT} and {MOST_WAIT}: write it like 30m or "
                "1h'",
                field=".maxWait",
            ),
            rule(
                f"!has(self.idleAfter) || !({_readable('self.idleAfter')}) || "
                f"duration(self.idleAfter) >= duration('{LEAST_IDLE}')",
                f"queue.idleAfter must be at least {LEAST_IDLE}: notice is given a minute before",
                says=f"'idleAfter ' + self.idleAfter + ' is less than {LEAST_IDLE}, and notice is given a minute "
                "before: write it like 10m or 1h'",
                field=".idleAfter",
            ),
        )
    )

    slots: Annotated[int, Field(ge=1, le=MOST_QUEUED)] = Field(
        description="Slots of each GPU beyond perGpu, whose containers wait while its perGpu places are taken."
    )
    max_wait: Duration = Field(
        default="1h",
        description=f"How long a process waits for a place, {LEAST_WAIT} to {MOST_WAIT}; then CUDA gets an error, and "
        "its pod an event.",
    )
    idle_after: Duration | None = Field(
        default=None,
        description="A client that has launched nothing for so long is ended when another waits for its place, with "
        f"notice a minute before; at least {LEAST_IDLE}. Default: no client is ended for its place.",
    )
