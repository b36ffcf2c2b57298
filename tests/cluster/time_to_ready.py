"""How long a share takes to become Ready."""

import time
from typing import Any

from tests.cluster.harness import Harness, is_ready, wait_until

LONGEST, POLL = 180.0, 0.2


def wait_for_free_gpus(harness: Harness) -> None:
    wait_until("the last MPS pod has ended", lambda: not harness.pods_of("mps"))


def seconds_to_ready(harness: Harness, gpus: int, **spec: Any) -> float:
    """The seconds of a share over `gpus` GPUs, which is deleted afterwards, from the request that creates it to the
    first reading that says Ready. `spec`: as of `harness.share`. TimeoutError.
    """
    began = time.monotonic()
    with harness.share("ready", ready=False, **spec) as share:
        while time.monotonic() - began < LONGEST:
            current = share.get()
            if is_ready(current) and current["status"].get("gpus", {}).get("ready") == gpus:
                return time.monotonic() - began
            time.sleep(POLL)
        raise TimeoutError(f"not Ready within {LONGEST:.0f} s: {share.condition()}")
