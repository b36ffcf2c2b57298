"""`python -m measurements.page.measure`: what the page costs a browser and its server at several sizes of a fleet.

Each size is opened REPEATS times in turns, while agents answer at the rate that the scraper allows. Writes JSON.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpushare.kubectl.page.cluster.scrapes import PER_SECOND
from localcluster.paths import REPOSITORY
from tests.browser.driver import Browser, chromium, missing
from tests.browser.fleet import GPUS, MadeFleet, uuids

SIZES = (10, 1000)
REPEATS = 5
SCROLL_SECONDS = 5.0
IDLE_SECONDS = 10.0
STEP = 120
"""Pixels of a scroll in each frame, nearly three rows: at 60 frames in a second 160 rows, as a fast wheel does."""

SCROLL = """
const [seconds, step, done] = arguments, list = document.getElementById("list"), gaps = [], tasks = [];
const watch = new PerformanceObserver((found) => tasks.push(...found.getEntries().map((one) => one.duration)));
watch.observe({ entryTypes: ["longtask"] });
const began = performance.now();
let last = 0, way = step;
requestAnimationFrame(function frame(now) {
  if (last) gaps.push(now - last);
  last = now;
  if (list.scrollTop + list.clientHeight >= list.scrollHeight - 1) way = -step;
  else if (list.scrollTop === 0) way = step;
  list.scrollTop += way;
  if (now - began < seconds * 1000) requestAnimationFrame(frame);
  else setTimeout(() => { watch.disconnect(); done({ gaps, tasks }); }, 100);
});
"""
IDLE = """
const [seconds, done] = arguments, tasks = [];
const watch = new PerformanceObserver((found) => tasks.push(...found.getEntries().map((one) => one.duration)));
watch.observe({ entryTypes: ["longtask"] });
performance.clearResourceTimings();
setTimeout(() => {
  watch.disconnect();
  const answers = performance.getEntriesByType("resource").filter((one) => one.name.includes("/changes?"));
  done({ tasks, bytes: answers.reduce((sum, one) => sum + one.decodedBodySize, 0) });
}, seconds * 1000);
"""
FILTER = """
const [text, done] = arguments, filter = document.getElementById("filter"), began = performance.now();
filter.value = text;
filter.dispatchEvent(new Event("input"));
requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
"""
OPENED = """
const shown = (name) => document.querySelector(`#tab-${name} .count`)?.textContent;
if (shown("gpus") !== arguments[0] || shown("clients") !== arguments[1] || !document.querySelector(".row")) return null;
const answers = performance.getEntriesByType("resource").filter((one) => one.name.includes("/changes?"));
return { milliseconds: performance.now(), bytes: answers.reduce((sum, one) => sum + one.decodedBodySize, 0),
         answers: answers.length };
"""


@contextmanager
def agents_answer(fleet: MadeFleet) -> Iterator[None]:
    """Answers for agents in a thread, PER_SECOND nodes in a second, one after the other."""
    stop = threading.Event()

    def run() -> None:
        turn = 0
        while not stop.wait(0.5):
            for _ in range(min(fleet.nodes, int(PER_SECOND / 2))):
                fleet.scrape(fleet.names()[turn % fleet.nodes], time.time())
                turn += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def measure(browser: Browser, fleet: MadeFleet) -> dict[str, float]:
    clients = sum(len(fleet.clients(uuid)) for node in fleet.names() for uuid in uuids(node))
    with fleet.served() as address, agents_answer(fleet):
        browser.open("about:blank")
        browser.open(address)
        opened = browser.wait(OPENED, str(fleet.nodes * GPUS), str(clients), seconds=60)
        browser.devtools("Performance.enable", timeDomain="threadTicks")
        before = cpu_seconds(browser)
        idle = browser.run_async(IDLE, IDLE_SECONDS)
        between = cpu_seconds(browser)
        scrolled = browser.run_async(SCROLL, SCROLL_SECONDS, STEP)
        after = cpu_seconds(browser)
        filtered = browser.run_async(FILTER, f"gpu-{fleet.nodes}")
        browser.devtools("HeapProfiler.collectGarbage")
        heap = browser.run("return performance.memory.usedJSHeapSize")
        rows = browser.run("return document.getElementsByTagName('*').length")
    gaps = sorted(scrolled["gaps"])
    return {
        "openedMilliseconds": round(opened["milliseconds"]),
        "openedBytes": opened["bytes"],
        "bytesPerSecond": round(idle["bytes"] / IDLE_SECONDS),
        "cpuPercent": round(100 * (between - before) / IDLE_SECONDS, 1),
        "scrollCpuMillisecondsPerFrame": round(1000 * (after - between) / len(gaps), 1),
        "longestTaskMilliseconds": round(max(idle["tasks"], default=0.0)),
        "scrollFrameMilliseconds": round(statistics.median(gaps), 1),
        "scrollFrameP99Milliseconds": round(gaps[int(len(gaps) * 0.99) - 1], 1),
        "scrollFrameLongestMilliseconds": round(gaps[-1], 1),
        "scrollLongTasks": len(scrolled["tasks"]),
        "filterMilliseconds": round(filtered, 1),
        "heapMib": round(heap / 2**20, 1),
        "elements": rows,
    }


def cpu_seconds(browser: Browser) -> float:
    """CPU time of the page's main thread: it does not count what other programs took of the machine meanwhile."""
    metrics = browser.devtools("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


def summary(rounds: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median, least and most of each figure."""
    return {
        name: {
            "median": statistics.median(figures[name] for figures in rounds),
            "least": min(figures[name] for figures in rounds),
            "most": max(figures[name] for figures in rounds),
        }
        for name in rounds[0]
    }


def environment(browser_version: str) -> dict[str, Any]:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cores": os.cpu_count(), "processor": models[0].partition(": ")[2] if models else "",
        "python": platform.python_version(), "browser": browser_version, "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=REPOSITORY / "measurements/results/ui.json")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    args = parser.parse_args()
    if absent := missing():
        print(absent, file=sys.stderr)
        return 1
    version = subprocess.run(["chromium", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    fleets = {nodes: MadeFleet(nodes) for nodes in SIZES}
    for fleet in fleets.values():
        fleet.past(0 if fleet.nodes > 100 else 300)
    rounds: dict[int, list[dict[str, float]]] = {nodes: [] for nodes in SIZES}
    before = environment(version)
    with chromium() as browser:
        browser.size(1400, 900)
        for _ in range(args.repeats):
            for nodes, fleet in fleets.items():
                rounds[nodes].append(measure(browser, fleet))
                print(nodes, json.dumps(rounds[nodes][-1]), flush=True)
    result = {
        "environment": before,
        "repeats": args.repeats,
        "agentsPerSecond": PER_SECOND,
        "gpusOfANode": GPUS,
        "serverMib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "nodes": {str(nodes): {"summary": summary(result), "rounds": result} for nodes, result in rounds.items()},
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
