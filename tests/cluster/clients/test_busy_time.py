"""Who says how busy it keeps its GPU, by the name of a thread, has a figure; nobody else has one."""

from typing import Any

from tests.cluster.harness import Harness, wait_until
from tests.cluster.tools.test_kubectl import ask
from tests.cluster.tools.test_metrics import Scraped

SAYS = """
import ctypes, sys, threading, time
from gpushare_workload.cli import main

def say():
    began = time.monotonic()
    while True:
        half = int((time.monotonic() - began) * 50)
        ctypes.CDLL(None).prctl(15, b"gpubusy%08x" % half, 0, 0, 0)
        time.sleep(0.2)

threading.Thread(target=say, daemon=True).start()
sys.exit(main(["run", "depart", "--report-every", "0.3"]))
"""
"""A client that says it is busy half of the time, as the library of workload/busytime would say it."""


def test_a_client_that_says_how_busy_it_is_is_shown_so_and_its_neighbour_is_not(harness: Harness) -> None:
    with harness.share("busy", per_node=1, per_gpu=2) as share, harness.namespace() as tenant:
        share.wait_capacity(2)
        tenant.start(tenant.pod("says", "busy", command=["python", "-c", SAYS]))
        (silent,) = tenant.neighbours("busy", 1)
        tenant.wait_event("says", "progress")

        def figures(pod: str) -> tuple[list[float], list[float]]:
            agent, labels = Scraped(harness, "agent"), {"namespace": tenant.name, "pod": pod, "container": "app"}
            names = "gpushare_container_busy_seconds_total", "gpushare_container_busy_ratio"
            seconds, ratio = (agent.values(name, share="busy", **labels) for name in names)
            return seconds, ratio

        def counted() -> bool:
            seconds, ratio = figures("says")
            return bool(ratio) and seconds[0] > 3 and 0.4 < ratio[0] < 0.6

        wait_until("half of the time is counted", counted, 60, lambda: figures("says"))
        assert figures(silent) == ([], [])
        clients: list[dict[str, Any]] = ask(harness, "top", "-n", tenant.name)["clients"]
        busy = {client["pod"]: client["busyPercent"] for client in clients}
        assert 40 < busy["says"] < 60
        assert busy[silent] is None
