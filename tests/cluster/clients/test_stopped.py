"""Parts that neither work nor end for a while, as on a machine that is starved: nobody is harmed, and all comes back.

How long: `--pause` (seconds), for which a few are enough in every run; minutes are for a campaign.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from localcluster.cluster import processes
from tests.cluster.clients.test_recovery import assert_no_restart
from tests.cluster.harness import NODE, Harness, wait_until
from tests.cluster.node import processes_of_pod, signal_in_node

COMPONENTS = ("kube-apiserver", "etcd", "kubelet")


@contextmanager
def stopped(harness: Harness, part: str) -> Iterator[None]:
    """SIGSTOP, and SIGCONT for what is still there: a liveness probe may have ended it."""
    if part in COMPONENTS:
        pid = processes.components(harness.layout)[part].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
        return
    pids = []
    for pod in harness.system.items("pods", f"--selector=app.kubernetes.io/component={part}"):
        pids += processes_of_pod(harness, pod["metadata"]["uid"], b"gpushare")
    assert pids
    for pid in pids:
        signal_in_node(harness, pid, "STOP")
    try:
        yield
    finally:
        for pid in pids:
            with suppress(subprocess.CalledProcessError):  # it is gone
                signal_in_node(harness, pid, "CONT")


@pytest.mark.takes(40)
@pytest.mark.parametrize("part", ["agent", "operator", "mps", *COMPONENTS])
def test_clients_go_on_and_what_happened_meanwhile_is_found(harness: Harness, pause: float, part: str) -> None:
    with harness.share("paused", per_node=1) as share, harness.namespace() as tenant:
        names = tenant.neighbours("paused", 2)
        tenant.start(tenant.pod("ends", "paused", "limits", "--hold", str(pause / 2)))
        tenant.wait_event("ends", "limits")
        before = {name: tenant.checks(name) for name in names}
        with stopped(harness, part):
            time.sleep(pause)
        wait_until("the API server answers", lambda: harness.kubectl.get("node", NODE), 60)
        for name, checks in before.items():
            tenant.wait_checks(name, above=checks + int(pause), seconds=60)
        wait_until("the slot of who ended is free", lambda: list(harness.held_by_gpu("paused").values()) == [2], 90)
        share.wait_ready(seconds=120)
        share.wait_capacity(8)
        assert_no_restart(tenant)
        tenant.start_replaced(tenant.pod("next", "paused", "depart"))
        tenant.wait_event("next", "progress")
        tenant.go_on(names)
