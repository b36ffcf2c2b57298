"""Measures ways within a time: installs each, and runs its cases until they or its part of the time are over."""

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measurements.gpu.environment import environment_block
from measurements.gpu.stack.steps import time_limit
from measurements.peers import logs
from measurements.peers.cases import CASES, Case
from measurements.peers.cases.starting import gpu_memory
from measurements.peers.results import Results
from measurements.peers.ways.way import NAMESPACES, Way
from tests.cluster.harness import Harness

FIRST = "starts"
INSTALLED = "peers-way"
"""Names the way that the cluster has now, in the cluster's own directory: `up` installs gpushare in a new one."""
INSTALL_SECONDS, CLEAN_UP_SECONDS = 180, 30
"""The longest times for one installation and one cleaning up."""
LEAST_SECONDS = 20
"""The least time for the cases of a way: a way that would get less is not begun, in favour of those before it."""
OVER_SECONDS = 40
"""A case that began in its way's time may go on for so long beyond it."""


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


@dataclass(frozen=True)
class Candidate:
    """A way that can be measured."""

    make: Callable[[], Way]
    install_seconds: float
    """What its installation takes on a machine with a GPU."""


@dataclass(frozen=True)
class Task:
    """A way by its name, and the cases that it has not had yet."""

    way: str
    cases: Sequence[str]
    results: Results


def first_part(installs: Sequence[float], left: float) -> float:
    """Seconds for the first of several ways: its installation, and an equal part of what all installations leave.

    `installs`: seconds of each way's installation, at least one. `left`: seconds for all. Where that is too little for
    all, those at the end get none.
    """
    rest = left - sum(installs)
    if rest < LEAST_SECONDS * len(installs) and len(installs) > 1:
        return first_part(installs[:-1], left)
    return installs[0] + rest / len(installs)


class Session:
    """`ways`: those that there are, by name. `log`: for what each way's own pods wrote last."""

    def __init__(
        self,
        harness: Harness,
        ways: Mapping[str, Candidate],
        deadline: Deadline,
        log: Path,
        cases: Mapping[str, Case] = CASES,
    ) -> None:
        self._harness, self._ways, self._deadline, self._log, self._cases = harness, ways, deadline, log, cases

    def measure(self, tasks: Sequence[Task]) -> bool:
        """Returns whether each of the cases has figures now. What a way does not use of its time, the next ones get."""
        complete = True
        for number, task in enumerate(tasks):
            installs = [self._ways[later.way].install_seconds for later in tasks[number:]]
            part = Deadline(first_part(installs, self._deadline.left))
            complete = self._one(task, part) and complete
        return complete

    def _one(self, task: Task, part: Deadline) -> bool:
        if self._deadline.left < LEAST_SECONDS:
            self._say(task.way, 0, "not begun, since the time is over")
            return False
        way: Way | None = None
        try:
            way = self._ways[task.way].make()
            seconds = min(INSTALL_SECONDS, self._deadline.left)
            with time_limit(f"the installation of {task.way}", seconds, CLEAN_UP_SECONDS):
                self._install(way, task.results)
            return self._measure(way, task, part)
        except Exception as error:  # noqa: BLE001 - the other ways are measured all the same
            _failed(task.results, "installation", error)
            return False
        finally:
            if way:
                with self._log.open("a") as log:
                    log.write(f"== {task.way}\n{logs.of_way(self._harness, way.namespace)}\n")

    def _install(self, way: Way, results: Results) -> None:
        """Installs the way in place of the one that is there, and removes the pods of a call that was cut off."""
        began = time.monotonic()
        installed = self._harness.layout.state / INSTALLED
        there = installed.read_text() if installed.exists() else "gpushare"
        _delete_clients(self._harness)
        if there != way.name:
            self._ways[there].make().uninstall(way)
            results.note(gpu_memory_mib_without=gpu_memory(self._harness))
            self._say(way.name, time.monotonic() - began, f"{there} is gone")
        installed.write_text(way.name)
        origin, promise = way.install(), way.promise
        seconds = time.monotonic() - began
        results.note(
            environment={**environment_block(), "cpus": len(os.sched_getaffinity(0))},
            origin=origin,
            installed_seconds=round(seconds, 1),
            promise={"threads_percent": promise.threads, "memory_bytes": promise.memory},
        )
        self._say(way.name, seconds, "installation")

    def _measure(self, way: Way, task: Task, part: Deadline) -> bool:
        """A case that its way has no time for is left out: a shorter one after it may still fit."""
        left_out = []
        done = 0
        for case in task.cases:
            if min(part.left, self._deadline.left) < self._cases[case].seconds:
                left_out.append(case)
                continue
            went_well = self._case(way, case, task.results, part)
            done += went_well
            if case == FIRST and not went_well:
                return False  # where no pod starts, the other cases would fail one by one, each after its time limit
        if left_out:
            self._say(way.name, 0, f"{', '.join(left_out)}: not begun, since the time is over")
        return done == len(task.cases)

    def _case(self, way: Way, case: str, results: Results, part: Deadline) -> bool:
        began = time.monotonic()
        try:
            chosen = self._cases[case]
            with time_limit(
                case, min(chosen.most_seconds, part.left + OVER_SECONDS, self._deadline.left), CLEAN_UP_SECONDS
            ):
                figures = chosen.measure(self._harness, way)
        except Exception as error:  # noqa: BLE001 - the other cases are measured all the same
            _failed(results, case, error)
            self._say(way.name, time.monotonic() - began, f"{case}: FAILED")
            return False
        seconds = time.monotonic() - began
        results.done(case, figures, seconds)
        self._say(way.name, seconds, case)
        return True

    def _say(self, way: str, seconds: float, what: str) -> None:
        spent = f"{self._deadline.spent:.0f} of {self._deadline.seconds:.0f} s"
        print(f"{seconds:6.1f} s  {way}: {what} ({spent})", flush=True)


def _delete_clients(harness: Harness) -> None:
    """A namespace that is on its way out has no pods any more: a case deletes them first."""
    for namespace in harness.kubectl.items("namespaces"):
        name = namespace["metadata"]["name"]
        if name.startswith(f"{NAMESPACES}-") and "deletionTimestamp" not in namespace["metadata"]:
            harness.kubectl.within(name).delete("pods", "--all", "--grace-period=1", seconds=90)
            harness.kubectl.delete("namespace", name, wait=False)


def _failed(results: Results, what: str, error: Exception) -> None:
    traceback.print_exception(error)
    results.failed(what, error)
