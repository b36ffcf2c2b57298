"""An operator that writes when nothing happens wears out etcd and hides what does happen."""

import time
from datetime import UTC, datetime

from tests.cluster.harness import Harness

IDLE_SECONDS = 120
SETTLE_SECONDS = 45
"""The agent may write its last observation up to ten seconds after a change, the operator the slots in use 15 s after
that; and it says after two readings of the agent's heartbeat that it reports."""


def test_idle_for_two_minutes_no_part_of_ours_writes_to_the_api(harness: Harness) -> None:
    """Leases are the one exception, the operator's and each agent's: holding one is what renewing means."""
    with harness.share("still") as share, harness.namespace() as tenant:
        tenant.neighbours("still", 3)
        share.wait_ready()
        time.sleep(SETTLE_SECONDS)
        since = datetime.now(UTC).isoformat()
        time.sleep(IDLE_SECONDS)
        writes = [
            (write["user"]["username"], write["verb"], write["requestURI"])
            for write in harness.audit()
            if write["stageTimestamp"] > since
            and write["verb"] in ("create", "update", "patch", "delete")
            and "gpushare" in write["user"]["username"]
            and write["objectRef"]["resource"] != "leases"
        ]
        assert writes == []
