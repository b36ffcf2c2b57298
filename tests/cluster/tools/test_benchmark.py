"""A benchmark of several pods: clients of one GPU that begin at one time, and one report from their logs."""

import time
from pathlib import Path

from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.reporting.build import build
from gpushare_workload.results.files import read
from tests.cluster.harness import Harness, wait_until

PODS = 2
LOADS = ("--kinds", "compute", "--grids", "small", "half", "--depths", "1")
OPTIONS = ("--modes", "mps", "--clients", "1", *LOADS, "--repeats", "1", "--seconds", "0.5", "--json", "-")
UNTIL_START = 30
"""Seconds for both pods to be scheduled, pulled and started."""


def test_pods_begin_together_and_their_logs_make_one_report(harness: Harness, tmp_path: Path) -> None:
    with harness.share("bench", per_node=1, threads={"default": 50}), harness.namespace() as tenant:
        start = int(time.time()) + UNTIL_START
        for number in range(PODS):
            which = ["--pods", str(PODS), "--pod", str(number), "--start-at", str(start)]
            command = ["gpushare-workload", "bench", *OPTIONS, *which]
            tenant.start(tenant.pod(f"bench-{number}", "bench", command=command))
        logs = []
        for number in range(PODS):
            name = f"bench-{number}"
            wait_until(
                f"{name} Succeeded",
                lambda name=name: tenant.kubectl.get("pod", name)["status"].get("phase") == "Succeeded",
                UNTIL_START + 120,
                lambda name=name: tenant.explain(name),
            )
            logs.append(tmp_path / f"{name}.log")
            logs[-1].write_text(tenant.kubectl.logs(name))
    collected = read(logs)
    assert [(run.mode, run.clients, run.sms) for run in collected.runs] == [(SharingMode.MPS, PODS, 66)] * 2
    assert all(result.kernels for run in collected.runs for result in run.results)
    assert collected.documents[0].environment["grant"]["threads"] == 50
    page, _ = build(collected)
    assert "they say nothing about speed" in page
