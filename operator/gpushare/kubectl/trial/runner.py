"""Runs the cases of a trial in a cluster, by kubectl, as Jobs in the user's namespace.

A case has one Job for each program that has copies in it. Guarantees: the Jobs of a case are deleted, with their pods,
before the next begins, and when a case ends by an error or a signal. If the trial itself is killed, Kubernetes ends its
Jobs at their deadline and deletes them ten minutes later.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpushare.api.client_class import ClientClass
from gpushare.kube.resources import KubeError
from gpushare.kubectl.cluster import Cluster
from gpushare.kubectl.rules.trial.apply import annotated, annotations_of
from gpushare.kubectl.rules.trial.cases import CaseEnded, CaseOutcome, Ending, TrialCase, TrialMode, WindowFigures
from gpushare.kubectl.rules.trial.options import RunTimes
from gpushare.kubectl.rules.trial.printed import (
    CopyFigures,
    NoFiguresError,
    PrintedFigures,
    PrintedLine,
    figures_by_program,
    figures_from,
    note_of_ends,
    note_of_latency,
)
from gpushare.kubectl.rules.trial.protect import RATE_VARIABLE
from gpushare.kubectl.trial.manifest import LABEL, job_name, job_of
from gpushare.kubectl.trial.pods import JOB_LABEL, CopyPod, read_log, tail_of
from gpushare.kubectl.trial.usage import AGE_SECONDS, UsageReader, UsageSampler
from gpushare.messages.wording import are, count_of

Object = dict[str, Any]
Windows = tuple[WindowFigures, ...]
Jobs = dict[str, int]
"""The Jobs of a case: by name the place of the program that each runs."""

POLL_SECONDS = 1.0
REFUSED_SECONDS = 5.0
"""A webhook that does not answer for a moment is no reason to end a case."""
TELL_SECONDS = 10.0
"""A copy that has not begun after so long may never do."""
MOST_NAMED = 3
GONE_SECONDS = 120.0
"""Time for the pods of a case to end: their own grace, and the kubelet."""
LOG_BYTES = 64 * 1024 * 1024
RECENT_LINES = 100
"""Enough to see a figure, and how a program ended."""
ALL_LINES = 20_000
"""The last lines of a run to its end."""


@dataclass(frozen=True, slots=True)
class TrialProgram:
    """`name`: of its file, for messages; `container`: of the template, the one whose figures count."""

    name: str
    template: Object
    container: str


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """What a trial is about. `programs`: one, or several, of each of which one copy runs; `name`: the trial's own, on
    every object of it.
    """

    programs: tuple[TrialProgram, ...]
    share: str
    namespace: str
    name: str
    printed: PrintedFigures
    times: RunTimes
    classes: bool = False
    """The share has classes, and what a service keeps is searched for."""
    alone: tuple[ClientClass, ClientClass] = (ClientClass.NORMAL, ClientClass.NORMAL)
    """There, the classes of the service and of the job alone: those in which they are best off."""

    def told(self, program: int) -> str:
        """One of several programs, such as `program 2 (train.yaml)`; empty if there is one."""
        return f"program {program + 1} ({self.programs[program].name})" if len(self.programs) > 1 else ""


class ClusterRunner:
    """Runs one case at a time."""

    def __init__(
        self,
        request: TrialRequest,
        kubectl: Cluster,
        usage: UsageReader,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`tell`: takes what the user should know meanwhile."""
        self._tell = tell
        self._request, self._kubectl, self._usage = request, kubectl, usage
        self._clock, self._sleep = clock, sleep
        self._number = 0
        self._left: list[str] = []

    def run_case(self, case: TrialCase, repeat: int, rate: float | None = None) -> CaseOutcome:
        """`rate`: what the service of a pair is to be asked; None: nothing is said. Raises what kubectl raises; the
        Jobs are deleted all the same.
        """
        if self._left:
            reason = f"{', '.join(self._left)} of the case before had not ended {GONE_SECONDS:g} s after the deletion"
            return CaseOutcome(case, repeat, Ending.FAILED, reason=reason)
        usage = UsageSampler(self._usage, self._request.namespace)
        with self._jobs(case, rate) as jobs:
            try:
                windows, notes = self._measure(jobs, case, usage)
            except CaseEnded as ended:
                return CaseOutcome(case, repeat, ended.ending, reason=str(ended))
            except NoFiguresError as error:
                return CaseOutcome(case, repeat, Ending.FAILED, reason=str(error))
        told = (usage.problem, note_of_latency(self._request.printed, windows))
        notes = (*notes, *(note for note in told if note))
        return CaseOutcome(
            case, repeat, Ending.MEASURED, windows, "", usage.busy_percent, usage.memory_mib, notes, usage.used_gpu
        )

    def delete_all(self) -> None:
        """Deletes every Job of this trial, with its pods, and waits for their end. No case begins beside one that has
        not ended.
        """
        self._run("delete", "jobs", f"--selector={LABEL}={self._request.name}", "--wait=false", "--ignore-not-found")
        end = self._clock() + GONE_SECONDS
        while (left := self._items("pods", f"{LABEL}={self._request.name}")) and self._clock() < end:
            self._sleep(POLL_SECONDS)
        self._left = [f"pod {pod['metadata']['name']}" for pod in left]

    @contextmanager
    def _jobs(self, case: TrialCase, rate: float | None) -> Iterator[Jobs]:
        request, jobs = self._request, Jobs()
        seconds = int(2 * request.times.start + request.times.warmup + request.times.measured + 60)
        try:
            for program, copies in enumerate(case.copies):
                if copies:
                    self._number += 1
                    template = self._template(case, program, rate)
                    body = job_of(template, request.share, request.name, copies, self._number, seconds)
                    self._run("create", "--filename=-", stdin=json.dumps(body))
                    jobs[job_name(request.name, self._number)] = program
            yield jobs
        finally:
            self.delete_all()

    def _template(self, case: TrialCase, place: int, rate: float | None) -> Object:
        """The program's, with the class and the cap of the case, and the rate that a service is to be asked."""
        program, classes = self._request.programs[place], self._request.classes
        if not classes and case.way is None and rate is None:
            return program.template
        annotations = annotations_of(case.way, place == 0, classes, self._request.alone[place])
        template = annotated(program.template, program.container, annotations)
        if place == 0 and rate is not None and case.mode is not TrialMode.CAPACITY:
            container = next(each for each in template["spec"]["containers"] if each["name"] == program.container)
            others = [each for each in container.get("env") or () if each.get("name") != RATE_VARIABLE]
            container["env"] = [*others, {"name": RATE_VARIABLE, "value": f"{rate:.6g}"}]
        return template

    def _measure(self, jobs: Jobs, case: TrialCase, usage: UsageSampler) -> tuple[Windows, tuple[str, ...]]:
        request = self._request
        pods = self._pods_once_started(jobs, case)
        if request.times.window is None:
            return self._to_the_end(jobs, case, usage)
        window = request.times.window
        end = self._clock() + request.times.start
        while True:
            lines = [read_log(self._log(pod, f"--tail={RECENT_LINES}"), request.printed) for pod in pods]
            if all(any(line.rates for line in copy) for copy in lines):
                break
            usage.look(self._raise_for_ended(jobs, to_the_end=False), within_window=False)
            if self._clock() >= end:
                silent = next(
                    pod for pod, copy in zip(pods, lines, strict=True) if not any(line.rates for line in copy)
                )
                last = tail_of(self._log(silent, f"--tail={RECENT_LINES}"))
                raise NoFiguresError(
                    f"{silent.who} printed no figure within {request.times.start:g} s (--start-timeout); its last "
                    f"lines:\n{last}"
                )
            self._sleep(POLL_SECONDS)
        begin = max(line.at for copy in lines for line in copy) + request.times.warmup
        warm = self._clock() + request.times.warmup
        windows = []
        for number in range(request.times.windows):
            until = warm + (number + 1) * window + POLL_SECONDS
            while self._clock() < until:
                looked = self._raise_for_ended(jobs, to_the_end=False)
                usage.look(looked, within_window=self._clock() >= warm + AGE_SECONDS)
                self._sleep(POLL_SECONDS)
            _raise_for_others(usage)
            # At each window's end: the kubelet keeps no more than the newest 10 MiB of a log at hand.
            at = begin + number * window
            since = f"--since-time={datetime.fromtimestamp(at, UTC).isoformat()}"
            lines = [read_log(self._log(pod, since), request.printed) for pod in pods]
            figures = []
            for pod, copy in zip(pods, lines, strict=True):
                with figures_from(pod.who):
                    figures.append(request.printed.within(copy, at, at + window))
            windows.append(_window(case, pods, figures))
        return tuple(windows), ()

    def _to_the_end(self, jobs: Jobs, case: TrialCase, usage: UsageSampler) -> tuple[Windows, tuple[str, ...]]:
        request = self._request
        end = self._clock() + request.times.start
        while True:
            pods = self._raise_for_ended(jobs, to_the_end=True)
            runs = [run for pod in pods if (run := pod.run) is not None]
            if len(runs) == case.total:
                break
            usage.look(pods, within_window=not runs)
            if self._clock() >= end:
                running = next((pod.told for pod in pods if pod.run is None), "") or "a copy"
                raise NoFiguresError(
                    f"{running} had not ended after {request.times.start:g} s (--start-timeout; a program without an "
                    "end needs --seconds)"
                )
            self._sleep(POLL_SECONDS)
        _raise_for_others(usage)
        seconds = [end - begin for begin, end in runs]
        longest = max(seconds)
        figures = []
        for pod, own in zip(pods, seconds, strict=True):
            lines: list[PrintedLine] = []
            if request.printed.rate is not None or request.printed.latency is not None:
                lines = read_log(self._log(pod, f"--tail={ALL_LINES}"), request.printed)
            with figures_from(pod.who):
                # Without a rate of its own, what counts is when the last copy was done.
                figures.append(request.printed.whole(lines, longest if request.printed.rate is None else own))
        whole = "runs are timed by Kubernetes' whole seconds" if request.printed.rate is None and longest < 30 else ""
        notes = (whole, note_of_ends([end for _, end in runs], longest, known_to=1.0))
        return (_window(case, pods, figures),), tuple(note for note in notes if note)

    def _pods_once_started(self, jobs: Jobs, case: TrialCase) -> list[CopyPod]:
        begin, refused_at, told = self._clock(), math.inf, ""
        while True:
            pods = self._raise_for_ended(jobs, to_the_end=True)
            if len(pods) == case.total and all(pod.started for pod in pods):
                return pods
            now = self._clock()
            if len(pods) < case.total and now - begin >= REFUSED_SECONDS and (refused := self._refused(jobs)):
                refused_at = min(refused_at, now)
                if now - refused_at >= REFUSED_SECONDS:
                    raise CaseEnded(Ending.FAILED, refused)
            reasons = (f"{pod.who}: {pod.waits_for}" for pod in pods if pod.waits_for)
            why = next(reasons, f"there {are(len(pods))} {len(pods)} of {count_of(case.total, 'pod')}")
            if now - begin >= self._request.times.start:
                raise CaseEnded(Ending.NO_ROOM, f"not all copies run after {self._request.times.start:g} s: {why}")
            if why != told and now - begin >= TELL_SECONDS:
                told = why
                self._tell(f"waiting for up to {self._request.times.start:g} s (--start-timeout): {why}")
            self._sleep(POLL_SECONDS)

    def _refused(self, jobs: Jobs) -> str:
        """What was said to the Job controller when it was refused a pod, as by a webhook or a quota; empty if nothing,
        or who runs the trial may not read events.
        """
        for job in jobs:
            about = f"--field-selector=involvedObject.kind=Job,involvedObject.name={job},reason=FailedCreate"
            try:
                events = json.loads(self._run("get", "events", about, "--output=json")).get("items") or []
            except KubeError:
                return ""
            if events:
                message = str(events[-1].get("message") or "")
                return message.partition(" is forbidden: ")[2] or message
        return ""

    def _raise_for_ended(self, jobs: Jobs, to_the_end: bool) -> list[CopyPod]:
        """The pods, by program and name. Raises CaseEnded."""
        items = self._items("pods", f"{JOB_LABEL} in ({','.join(jobs)})")
        pods = [self._copy(pod, jobs[pod["metadata"]["labels"][JOB_LABEL]]) for pod in items]
        for pod in pods:
            if pod.phase in ("Failed", "Succeeded"):
                wanted = pod.phase == "Failed" or not to_the_end
                log = self._log(pod, f"--tail={RECENT_LINES}") if wanted else ""
                figures = bool(read_log(log, self._request.printed))
                if (ended := pod.ended_badly(log, to_the_end, figures)) is not None:
                    raise ended
        return sorted(pods, key=lambda pod: (pod.program, pod.name))

    def _copy(self, pod: Object, program: int) -> CopyPod:
        return CopyPod(program, self._request.told(program), self._request.programs[program].container, pod)

    def _items(self, kind: str, selector: str) -> list[Object]:
        answer = json.loads(self._run("get", kind, f"--selector={selector}", "--output=json"))
        return list(answer.get("items") or [])

    def _log(self, pod: CopyPod, part: str) -> str:
        container = f"--container={pod.container}"
        return self._run("logs", pod.name, container, "--timestamps", f"--limit-bytes={LOG_BYTES}", part)

    def _run(self, *arguments: str, stdin: str | None = None) -> str:
        return self._kubectl.run(*arguments, f"--namespace={self._request.namespace}", stdin=stdin)


def _raise_for_others(usage: UsageSampler) -> None:
    """CaseEnded: the copies were not alone with each other."""
    if usage.others:
        who = ", ".join(sorted(usage.others)[:MOST_NAMED])
        raise CaseEnded(
            Ending.FAILED,
            f"others used the same GPU meanwhile ({who}), so the figures would not be those of the copies",
        )


def _window(case: TrialCase, pods: Sequence[CopyPod], figures: Sequence[CopyFigures]) -> WindowFigures:
    return figures_by_program(len(case.copies), [pod.program for pod in pods], figures)
