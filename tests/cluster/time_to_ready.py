"""How long a share takes to become Ready."""

import time
from collections.abc import Mapping
from typing import Any

from tests.cluster.harness import Harness, is_ready, wait_until

LONGEST, POLL = 180.0, 0.2
MPS_PODS = "--selector=app.kubernetes.io/component=mps"


def times_to_ready(harness: Harness, gpus: int, rounds: int, **spec: Any) -> list[float]:
    """Seconds, of shares over `gpus` GPUs one after the other; `spec`: as of `harness.share`."""
    times = []
    for _ in range(rounds):
        wait_until("the last MPS pod has ended", lambda: not harness.system.items("pods", MPS_PODS))
        times.append(_seconds_to_ready(harness, gpus, spec))
    return times


def _seconds_to_ready(harness: Harness, gpus: int, spec: Mapping[str, Any]) -> float:
    began = time.monotonic()
    with harness.share("ready", ready=False, **spec) as share:
        while time.monotonic() - began < LONGEST:
            found = share.get()
            if is_ready(found) and found["status"].get("gpus", {}).get("ready") == gpus:
                return time.monotonic() - began
            time.sleep(POLL)
        raise TimeoutError(f"not Ready within {LONGEST:.0f} s: {share.condition()}")
