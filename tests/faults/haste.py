"""What a campaign waits for without need: an operator that follows one that was ended need not wait its Lease out each
time.

Nothing of ours is any different by that. The first end of the operator in a run is waited out wholly, since the fleet
has nobody for 30 s then; what follows it in the same run comes sooner.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gpushare.api.names import OPERATOR_LEASE
from localcluster.kubectl import CommandError, Kubectl
from tests.faults.points import Recorder

EXPIRES_AT_ONCE = '{"spec": {"leaseDurationSeconds": 1}}'
HEARD_SECONDS = 0.5


@contextmanager
def leases_cut_short(system: Kubectl, recorder: Recorder) -> Iterator[None]:
    """Cuts Leases short while it is open: the Lease of the second operator that is ended, and of each after it, expires
    at once.

    `system`: in gpushare's namespace.
    """
    over = threading.Event()
    thread = threading.Thread(target=_cut, args=(system, recorder, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


def _cut(system: Kubectl, recorder: Recorder, over: threading.Event) -> None:
    known = 1
    while not over.wait(HEARD_SECONDS):
        died = recorder.died()["operator"]
        if died > known:
            known = died
            with suppress(CommandError):  # there is none: gpushare is being uninstalled
                system("patch", "lease", OPERATOR_LEASE, "--type=merge", f"--patch={EXPIRES_AT_ONCE}")
