"""Measures one way within a time: installs it, and runs its cases until they are done or the time is over."""

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.kubectl import CommandError
from tests.cluster.harness import Harness
from tests.gpu.environment import environment_block
from tests.gpu.stack.place import WORK
from tests.gpu.stack.steps import time_limit
from tests.peers.cases import CASES
from tests.peers.cases.starting import gpu_memory
from tests.peers.results import Results
from tests.peers.ways.way import NAMESPACES, Way

FIRST = "starts"
INSTALLED = WORK / "peers" / "installed"
"""Names the way that the cluster has now. `up` installs gpushare."""
INSTALL_SECONDS, CASE_SECONDS, CLEAN_UP_SECONDS, LEAST_SECONDS = 180, 150, 30, 20
"""At most for one of them; the last: no case begins with less time left."""


@dataclass(frozen=True)
class Deadline:
    """`seconds` from now on."""

    seconds: float
    _began: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        return self.seconds - self.spent


class Session:
    """`ways`: those that there are, by name. `log`: for what each way's own pods wrote last."""

    def __init__(self, harness: Harness, ways: Mapping[str, Callable[[], Way]], deadline: Deadline, log: Path) -> None:
        self._harness, self._ways, self._deadline, self._log = harness, ways, deadline, log

    def measure(self, name: str, cases: Sequence[str], results: Results) -> bool:
        """Returns whether each of the cases has figures now."""
        way = self._ways[name]()
        try:
            seconds = min(INSTALL_SECONDS, self._deadline.left)
            with time_limit(f"the installation of {name}", seconds, CLEAN_UP_SECONDS):
                self._install(way, results)
            return self._measure(way, cases, results)
        except Exception as error:  # noqa: BLE001 - the other ways are measured all the same
            _failed(results, "installation", error)
            return False
        finally:
            with self._log.open("a") as log:
                log.write(f"== {name}\n{_logs(self._harness, way)}\n")

    def _install(self, way: Way, results: Results) -> None:
        """In place of the way that is there, and without the pods that a call left that was cut off."""
        began = time.monotonic()
        there = INSTALLED.read_text() if INSTALLED.exists() else "gpushare"
        _delete_clients(self._harness)
        if there != way.name:
            self._ways[there]().uninstall()
            results.note(gpu_memory_mib_without=gpu_memory(self._harness))
        INSTALLED.parent.mkdir(parents=True, exist_ok=True)
        INSTALLED.write_text(way.name)
        origin, promise = way.install(), way.promise
        seconds = time.monotonic() - began
        results.note(
            environment={**environment_block(), "cpus": len(os.sched_getaffinity(0))},
            origin=origin,
            installed_seconds=round(seconds, 1),
            promise={"threads_percent": promise.threads, "memory_bytes": promise.memory},
        )
        self._say(way, seconds, "installation")

    def _measure(self, way: Way, cases: Sequence[str], results: Results) -> bool:
        done = 0
        for case in cases:
            if self._deadline.left < LEAST_SECONDS:
                self._say(way, 0, f"{', '.join(cases[done:])}: not begun, since the time is over")
                return False
            done += self._case(way, case, results)
            if case == FIRST and not done:
                return False  # where no pod starts, the other cases would fail one by one, each after its time limit
        return done == len(cases)

    def _case(self, way: Way, case: str, results: Results) -> bool:
        began = time.monotonic()
        try:
            with time_limit(case, min(CASE_SECONDS, self._deadline.left), CLEAN_UP_SECONDS):
                figures = CASES[case](self._harness, way)
        except Exception as error:  # noqa: BLE001 - the other cases are measured all the same
            _failed(results, case, error)
            self._say(way, time.monotonic() - began, f"{case}: FAILED")
            return False
        seconds = time.monotonic() - began
        results.done(case, figures, seconds)
        self._say(way, seconds, case)
        return True

    def _say(self, way: Way, seconds: float, what: str) -> None:
        spent = f"{self._deadline.spent:.0f} of {self._deadline.seconds:.0f} s"
        print(f"{seconds:6.1f} s  {way.name}: {what} ({spent})", flush=True)


def _delete_clients(harness: Harness) -> None:
    names = [it["metadata"]["name"] for it in harness.kubectl.items("namespaces")]
    for name in names:
        if name.startswith(f"{NAMESPACES}-"):
            harness.kubectl.within(name).delete("pods", "--all", "--grace-period=1", seconds=90)
            harness.kubectl.delete("namespace", name, wait=False)


def _logs(harness: Harness, way: Way) -> str:
    """What the way's own pods wrote last, to understand a failure."""
    within = harness.kubectl.within(way.namespace)
    asked = [("get", "pods", "--output=wide"), ("get", "events", "--sort-by=.lastTimestamp")]
    try:
        asked += [("logs", it["metadata"]["name"], "--all-containers", "--tail=150") for it in within.items("pods")]
        return "\n".join(within(*arguments) for arguments in asked)
    except CommandError as error:
        return str(error)


def _failed(results: Results, what: str, error: Exception) -> None:
    traceback.print_exception(error)
    results.failed(what, error)
