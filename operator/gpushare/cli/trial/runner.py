"""Runs the cases of a trial in a cluster, by kubectl, as Jobs in the user's namespace.

Guarantees: the Job of a case is deleted, with its pods, before the next begins, and when a case ends by an error or a
signal. If the trial itself is killed, Kubernetes ends its Job at its deadline and deletes it ten minutes later.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from gpushare.cli.trial.manifest import LABEL, job_name, job_of
from gpushare.cli.trial.pods import ended_badly, read_log, run_seconds, started, waiting_for
from gpushare.cli.trial.usage import AGE_SECONDS, UsageReader, UsageSampler
from gpushare.trial.cases import CaseEnded, CaseOutcome, Ending, TrialCase, WindowFigures
from gpushare.trial.options import RunTimes
from gpushare.trial.printed import NoFiguresError, PrintedFigures, PrintedLine, window_of

Object = dict[str, Any]
Windows = tuple[WindowFigures, ...]

POLL_SECONDS = 1.0
GONE_SECONDS = 120.0
"""For the pods of a case to end: their own grace, and the kubelet."""
LOG_BYTES = 64 * 1024 * 1024
RECENT_LINES = 100
"""Enough to see a figure, and how a program ended."""
ALL_LINES = 20_000
"""The last lines of a run to its end."""


class KubectlRunner(Protocol):
    """Runs kubectl with the user's own context and rights."""

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """Standard output of one run, which has a time limit."""
        ...


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """What a trial is about. `name`: the trial's own, on every object of it."""

    template: Object
    container: str
    share: str
    namespace: str
    name: str
    printed: PrintedFigures
    times: RunTimes


class ClusterRunner:
    """Runs one case at a time."""

    def __init__(
        self,
        request: TrialRequest,
        kubectl: KubectlRunner,
        usage: UsageReader,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._request, self._kubectl, self._usage = request, kubectl, usage
        self._clock, self._sleep = clock, sleep
        self._number = 0

    def run_case(self, case: TrialCase, repeat: int) -> CaseOutcome:
        """Raises what kubectl raises; the Job is deleted all the same."""
        usage = UsageSampler(self._usage, self._request.namespace)
        with self._job(case) as job:
            try:
                windows, notes = self._measure(job, case, usage)
            except CaseEnded as ended:
                return CaseOutcome(case, repeat, ended.ending, reason=str(ended))
            except NoFiguresError as error:
                return CaseOutcome(case, repeat, Ending.FAILED, reason=str(error))
        notes = (*notes, usage.problem) if usage.problem else notes
        return CaseOutcome(case, repeat, Ending.MEASURED, windows, "", usage.busy_percent, usage.memory_mib, notes)

    def delete_all(self) -> None:
        """Deletes every Job of this trial, with its pods, and waits for their end."""
        self._run("delete", "jobs", f"--selector={LABEL}={self._request.name}", "--wait=false", "--ignore-not-found")
        end = self._clock() + GONE_SECONDS
        while self._items("pods", f"{LABEL}={self._request.name}") and self._clock() < end:
            self._sleep(POLL_SECONDS)

    @contextmanager
    def _job(self, case: TrialCase) -> Iterator[str]:
        request, self._number = self._request, self._number + 1
        seconds = int(2 * request.times.start + request.times.warmup + request.times.measured + 60)
        body = job_of(request.template, request.share, request.name, case, self._number, seconds)
        try:
            self._run("create", "--filename=-", stdin=json.dumps(body))
            yield job_name(request.name, self._number)
        finally:
            self.delete_all()

    def _measure(self, job: str, case: TrialCase, usage: UsageSampler) -> tuple[Windows, tuple[str, ...]]:
        request = self._request
        pods = self._pods_once(job, case, lambda found: started(found, request.container, case.total))
        if request.times.window is None:
            return self._to_the_end(job, case, usage)
        window = request.times.window
        names = sorted(pod["metadata"]["name"] for pod in pods)
        end = self._clock() + request.times.start
        while True:
            lines = [read_log(self._log(name, f"--tail={RECENT_LINES}"), request.printed) for name in names]
            if all(any(line.rates for line in copy) for copy in lines):
                break
            usage.look(self._raise_for_ended(job, to_the_end=False), within_window=False)
            if self._clock() >= end:
                silent = next(name for name, copy in zip(names, lines, strict=True) if not any(it.rates for it in copy))
                raise NoFiguresError(
                    f"pod {silent} printed no figure within {request.times.start:g} s (--start-timeout)"
                )
            self._sleep(POLL_SECONDS)
        begin = max(line.at for copy in lines for line in copy) + request.times.warmup
        warm = self._clock() + request.times.warmup
        windows = []
        for number in range(request.times.windows):
            until = warm + (number + 1) * window + POLL_SECONDS
            while self._clock() < until:
                pods = self._raise_for_ended(job, to_the_end=False)
                usage.look(pods, within_window=self._clock() >= warm + AGE_SECONDS)
                self._sleep(POLL_SECONDS)
            # At each window's end: the kubelet keeps no more than the newest 10 MiB of a log at hand.
            at = begin + number * window
            since = f"--since-time={datetime.fromtimestamp(at, UTC).isoformat()}"
            lines = [read_log(self._log(name, since), request.printed) for name in names]
            windows.append(window_of([[request.printed.within(copy, at, at + window) for copy in lines]]))
        return tuple(windows), ()

    def _to_the_end(self, job: str, case: TrialCase, usage: UsageSampler) -> tuple[Windows, tuple[str, ...]]:
        request = self._request
        end = self._clock() + request.times.start
        while True:
            pods = self._raise_for_ended(job, to_the_end=True)
            seconds = [run_seconds(pod, request.container) for pod in pods]
            known = [one for one in seconds if one is not None]
            if len(known) == case.total:
                break
            usage.look(pods, within_window=not known)
            if self._clock() >= end:
                raise NoFiguresError(
                    f"a copy had not ended after {request.times.start:g} s (--start-timeout; a program without an end "
                    "needs --seconds)"
                )
            self._sleep(POLL_SECONDS)
        longest = max(known)
        figures = []
        for pod, own in zip(pods, known, strict=True):
            lines: list[PrintedLine] = []
            if request.printed.rate is not None or request.printed.latency is not None:
                lines = read_log(self._log(pod["metadata"]["name"], f"--tail={ALL_LINES}"), request.printed)
            figures.append(request.printed.whole(lines, longest if request.printed.rate is None else own))
        note = "runs are timed by Kubernetes' whole seconds" if request.printed.rate is None and longest < 30 else ""
        return (window_of([figures]),), (note,) if note else ()

    def _pods_once(self, job: str, case: TrialCase, done: Callable[[Sequence[Object]], bool]) -> list[Object]:
        end = self._clock() + self._request.times.start
        while True:
            pods = self._raise_for_ended(job, to_the_end=True)
            if done(pods):
                return pods
            if self._clock() >= end:
                why = waiting_for(pods, self._request.container) or f"{len(pods)} of {case.total} pods exist"
                raise CaseEnded(Ending.NO_ROOM, f"not all copies run after {self._request.times.start:g} s: {why}")
            self._sleep(POLL_SECONDS)

    def _raise_for_ended(self, job: str, to_the_end: bool) -> list[Object]:
        """The pods. Raises CaseEnded."""
        pods = self._items("pods", f"batch.kubernetes.io/job-name={job}")
        for pod in pods:
            phase = (pod.get("status") or {}).get("phase")
            if phase in ("Failed", "Succeeded"):
                wanted = phase == "Failed" or not to_the_end
                log = self._log(pod["metadata"]["name"], f"--tail={RECENT_LINES}") if wanted else ""
                if (ended := ended_badly(pod, self._request.container, log, to_the_end)) is not None:
                    raise ended
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    def _items(self, kind: str, selector: str) -> list[Object]:
        answer = json.loads(self._run("get", kind, f"--selector={selector}", "--output=json"))
        return list(answer.get("items") or [])

    def _log(self, pod: str, part: str) -> str:
        container = f"--container={self._request.container}"
        return self._run("logs", pod, container, "--timestamps", f"--limit-bytes={LOG_BYTES}", part)

    def _run(self, *arguments: str, stdin: str | None = None) -> str:
        return self._kubectl.run(*arguments, f"--namespace={self._request.namespace}", stdin=stdin)
