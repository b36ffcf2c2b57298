"""Does every panel of the chart's dashboard show something, and does an alert fire only for what it means?

`python -m measurements.dashboard --minutes 60`: a cluster with simulated GPUs, a real Prometheus that scrapes it as the
chart's PodMonitor says, and a random life on it. Then each query of the dashboard runs over that time.
`--again` judges the last run once more, from Prometheus' data: after a change of the dashboard.
"""

import argparse
import json
import random
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localcluster.cluster import cluster
from localcluster.paths import REPOSITORY, cache_root
from localcluster.programs.build import HELM, PROMETHEUS, build_component
from localcluster.stack import NAMESPACE, RELEASE, embedded, install
from measurements.dashboard import alerts, panels
from measurements.dashboard.accidents import ACCIDENTS
from measurements.dashboard.life import Life
from measurements.dashboard.pictures import draw
from measurements.dashboard.report import commit, costs, report
from tests.cluster.harness import Harness
from tests.prometheus import chart
from tests.prometheus.server import running

CLUSTER = "dashboard"
DIRECTORY = REPOSITORY / "build" / "dashboard"
RECORD = DIRECTORY / "run.json"
RESULT = REPOSITORY / "measurements" / "results" / "dashboard.json"
PICTURE = RESULT.with_suffix(".png")
JOB = f"{NAMESPACE}/{RELEASE}"
SETTLE_SECONDS = 60
"""The wait after the end, so that the last scrapes and alerts are in."""


def run(minutes: float, seed: int, name: str, program: Path) -> None:
    """Lives for that long, and writes RECORD; Prometheus' data stay in DIRECTORY."""
    helm = build_component(HELM, cache_root()) / "helm"
    chance = random.Random(seed)
    try:
        harness = Harness(embedded(name))
        install(harness.stack)
        scrape = chart.scrape_config(chart.manifest(helm, "podmonitor.yaml"), harness.layout.kubeconfig)
        rules = chart.manifest(helm, "prometheusrule.yaml")["spec"]
        data = DIRECTORY / f"run-{seed}"
        with running(program, data, [scrape], rules) as prometheus:
            print(f"Prometheus answers at {prometheus.address}; seed {seed}", flush=True)
            record: dict[str, Any] = {"seed": seed, "minutes": minutes, "commit": commit(), "data": str(data)}
            record["start"] = time.time()
            life = Life(harness, chance)
            try:
                life.live(minutes)
                time.sleep(min(SETTLE_SECONDS, minutes * 6))
            finally:
                record |= {"end": time.time(), "happenings": life.told(), "load": round(life.load, 1)}
                RECORD.write_text(json.dumps(record, indent=2) + "\n")
    finally:
        cluster.down(name)


def judge(program: Path, remark: str) -> int:
    """Runs the dashboard's queries over the recorded run, prints what is wrong, and writes RESULT. 1: something is."""
    record = json.loads(RECORD.read_text())
    start, end = record["start"], record["end"]
    happened = [(happening["at"], happening["what"]) for happening in record["happenings"]]
    with running(program, Path(record["data"])) as prometheus:
        window = panels.Window(start, end)
        shares = prometheus.values_of("share", "gpushare_share_condition", start, end)
        shown = panels.show(chart.dashboard(), window, {"share": shares}, prometheus.range)
        fired = alerts.judge(prometheus.range(alerts.FIRING, start, end, 15.0), happened, ACCIDENTS)
        cost = costs(prometheus, JOB, start, end)
    result = report(record | {"remark": remark}, shown, fired, cost)
    draw(shown, start, end, 2 * panels.DEFAULT_SCRAPE_SECONDS, PICTURE)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print("\n".join(panels.table(shown)))
    for alert in fired:
        lasted = alert.end - alert.start
        print(f"{alert.alert} at {alert.start - start:.0f} s for {lasted:.0f} s: {alert.because or 'FALSE'}")
    wrong = len(result["empty"]) + result["sameLegend"] + len(result["falseAlerts"])
    print(
        f"{len(shown)} panels, {len(result['empty'])} queries without data, "
        f"{result['sameLegend']} legends that collide, "
        f"{len(fired)} alerts, false: {result['falseAlerts'] or 'none'}; {RESULT.relative_to(REPOSITORY)}"
    )
    return 1 if wrong else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--seed", type=int, default=None, help="of the random life; default: a new one, which is printed"
    )
    parser.add_argument("--again", action="store_true", help="judge the last run once more")
    parser.add_argument("--remark", default="", help="what else the machine did, for the result")
    parser.add_argument("--cluster", default=CLUSTER, help="its name")
    arguments = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # also in the background: the cluster ends
        signal.signal(number, signal.default_int_handler)
    program = build_component(PROMETHEUS, cache_root()) / "prometheus"
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    if not arguments.again:
        seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1_000_000)
        run(arguments.minutes, seed, arguments.cluster, program)
    return judge(program, arguments.remark)


if __name__ == "__main__":
    sys.exit(main())
