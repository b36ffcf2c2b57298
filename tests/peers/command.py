"""The steps by name. Exit code 0: every test of every way gave figures; 1: not; 2: misuse."""

import argparse
import json
import os
import shutil
import tarfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from localcluster.errors import LocalClusterError
from localcluster.kubectl import CommandError
from tests.cluster.harness import Harness
from tests.gpu.environment import environment_block
from tests.gpu.stack import bring
from tests.gpu.stack.payload import extract
from tests.gpu.stack.place import RESULTS, WORK
from tests.gpu.stack.steps import Steps
from tests.peers import build, page
from tests.peers.cases import CASES
from tests.peers.nvidia import NvidiaPlugin
from tests.peers.way import Gpushare, Way

WAYS = tuple(page.TITLES)


def main(argv: Sequence[str], description: str) -> int:
    return _steps(description).run(argv)


def _steps(description: str) -> Steps:
    steps = Steps("tests/peers/run", description)
    made = steps.add("build", _build, "build NVIDIA's device plugin from a checkout of its sources")
    made.add_argument("source", type=Path)
    made.add_argument("out", type=Path)
    measured = steps.add("measure", _measure, "install, measure and uninstall each way in turn")
    measured.add_argument("peer", type=Path, help="the folder that `build` wrote to")
    measured.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="default: all")
    measured.add_argument("--cases", nargs="+", choices=CASES, default=tuple(CASES), help="default: all")
    measured.add_argument("--out", type=Path, default=RESULTS, help="for the results (default: %(default)s)")
    drawn = steps.add("page", _page, "write the measured table into docs/comparison.md")
    drawn.add_argument("--results", type=Path, default=RESULTS, help="where the results are (default: %(default)s)")
    return steps


def _build(arguments: argparse.Namespace) -> bool:
    packed = build.build(arguments.source, arguments.out)
    print(f"{packed}: {packed.stat().st_size >> 20} MiB")
    return True


def _page(arguments: argparse.Namespace) -> bool:
    page.write(page.read(arguments.results))
    return True


def _measure(arguments: argparse.Namespace) -> bool:
    stack, record = bring.running()
    harness = Harness(stack)
    arguments.out.mkdir(parents=True, exist_ok=True)
    ended = [
        _way(way, harness, arguments.cases, arguments.out / page.file_of(way.name), record)
        for way in _ways(harness, arguments, int(record.truth["memory_mib"]))
    ]
    return all(ended)


def _ways(harness: Harness, arguments: argparse.Namespace, memory_mib: int) -> Iterator[Way]:
    """gpushare is installed by `up`: whatever way comes first, it must be gone before."""
    peer = WORK / build.FOLDER
    if set(arguments.ways) != {Gpushare.name}:
        _unpack(arguments.peer / build.PACKED, peer)
    bring.uninstall(harness.stack)
    for name in arguments.ways:
        if name == Gpushare.name:
            yield Gpushare(harness, memory_mib)
        else:
            yield NvidiaPlugin(harness, peer, "mps" if name == "nvidia-mps" else "timeSlicing", memory_mib)


def _unpack(packed: Path, peer: Path) -> None:
    """In place of what an earlier build has left. Raises LocalClusterError if there is nothing to unpack."""
    if not packed.exists():
        raise LocalClusterError(f"{packed} is not there: `tests/peers/run build SOURCE {packed.parent}` makes it")
    shutil.rmtree(peer, ignore_errors=True)
    with tarfile.open(packed) as tar:
        extract(tar, peer, "data")


def _way(way: Way, harness: Harness, cases: Sequence[str], out: Path, record: bring.Record) -> bool:
    """Adds the figures to those that the file has already, case by case: a run may be cut off."""
    result: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"cases": {}}
    result |= {"way": way.name, "simulated": record.simulated, "failed": {}, "truth": record.truth}
    result["environment"] = {**environment_block(), "cpus": len(os.sched_getaffinity(0))}
    began = time.monotonic()
    try:
        result["origin"] = way.install()
        result["installed_seconds"] = round(time.monotonic() - began, 1)
        promise = way.promise
        result["promise"] = {"threads_percent": promise.threads, "memory_bytes": promise.memory}
        for name in cases:
            _case(way, harness, name, result)
            out.write_text(json.dumps(result, indent=2) + "\n")
            if name == "starts" and name in result["failed"]:
                break  # where no pod starts, the other cases would fail one by one, each after its time limit
    except Exception as error:  # noqa: BLE001 - the other ways are measured all the same
        _failed(result, "installation", error)
        out.write_text(json.dumps(result, indent=2) + "\n")
    finally:
        out.with_suffix(".log").write_text(_logs(harness, way))
        way.uninstall()
    return not result["failed"]


def _case(way: Way, harness: Harness, name: str, result: dict[str, Any]) -> None:
    began = time.monotonic()
    result["cases"].pop(name, None)
    try:
        result["cases"][name] = CASES[name](harness, way)
    except Exception as error:  # noqa: BLE001 - the other cases are measured all the same
        _failed(result, name, error)
    verdict = "FAILED" if name in result["failed"] else "done"
    print(f"{time.monotonic() - began:6.1f} s  {way.name}: {name}: {verdict}", flush=True)


def _logs(harness: Harness, way: Way) -> str:
    """What the way's own pods wrote last, to understand a failure."""
    within = harness.kubectl.within(way.namespace)
    asked = [("get", "pods", "--output=wide"), ("get", "events", "--sort-by=.lastTimestamp")]
    try:
        asked += [("logs", it["metadata"]["name"], "--all-containers", "--tail=150") for it in within.items("pods")]
        return "\n".join(within(*arguments) for arguments in asked)
    except CommandError as error:
        return str(error)


def _failed(result: dict[str, Any], name: str, error: Exception) -> None:
    traceback.print_exc()
    result["failed"][name] = f"{type(error).__name__}: {error}"[:2000]
