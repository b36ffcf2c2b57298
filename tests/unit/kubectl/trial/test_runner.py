"""A case in a cluster: its Jobs are made, measured by their logs, and deleted whatever happens."""

import json
import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.output.report import Sentences, Table
from gpushare.kubectl.rules.trial.cases import CaseOutcome, Ending, TrialCase, TrialMode, TrialPlan, next_run
from gpushare.kubectl.rules.trial.options import RunTimes
from gpushare.kubectl.rules.trial.printed import FigureReader, PrintedFigures
from gpushare.kubectl.rules.trial.protect import JobWay, ProtectTerms, Slo
from gpushare.kubectl.rules.trial.records import TrialRecord
from gpushare.kubectl.trial.command import alone_classes, report_of
from gpushare.kubectl.trial.manifest import LABEL
from gpushare.kubectl.trial.pods import JOB_LABEL, read_log, tail_of
from gpushare.kubectl.trial.runner import REFUSED_SECONDS, ClusterRunner, TrialProgram, TrialRequest
from gpushare.kubectl.trial.usage import UsageReading, UsageUnknownError

BEGAN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
PRINTED = PrintedFigures(FigureReader(field="rate"), latency=FigureReader(field="ms"))
APP = TrialProgram("app.yaml", {"metadata": {}, "spec": {"containers": [{"name": "app"}]}}, "app")
TRAIN = TrialProgram("train.yaml", {"metadata": {}, "spec": {"containers": [{"name": "train"}]}}, "train")
PREPARE = TrialProgram("prepare.yaml", {"metadata": {}, "spec": {"containers": [{"name": "prepare"}]}}, "prepare")
SHARE = GpuShare.model_validate(
    {"metadata": {"name": "inference"}, "spec": {"clients": {"perGpu": 8, "memory": {"default": "8Gi"}}}}
)
ALONE, FOUR = TrialCase(TrialMode.ALONE, (1,)), TrialCase(TrialMode.SLOTS, (4,))
FIRST, SECOND = TrialCase(TrialMode.ALONE, (1, 0)), TrialCase(TrialMode.ALONE, (0, 1))
PAIR = TrialCase(TrialMode.SLOTS, (1, 1))


def stamp(at: float) -> str:
    return datetime.fromtimestamp(BEGAN + at, UTC).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True)
class FakeJob:
    began: float
    copies: int
    container: str


@dataclass
class FakeKubectl:
    """A cluster with one share of `slots`, in which each pod prints a rate of `rate / copies` every second, and as its
    latency the number of copies, of which each of container `train` counts as ten.

    `fails`: the last line of a pod that exits with 1; `ends`: after so many seconds pods exit with 0, those of `train`
    `later`; `broken`: the command that kubectl fails with, at its run of that number; `rises`: by how much the rate of
    all is higher with each second; `only`: the container to which `fails` and `silent` apply. `refused`: what the Job
    controller is told when it makes a pod.
    """

    slots: int = 8
    rate: float = 100.0
    fails: str = ""
    ends: float | None = None
    later: float = 0.0
    broken: str = ""
    number: int = 1
    only: str = ""
    now: float = 0.0
    silent: bool = False
    rises: float = 0.0
    refused: str = ""
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    templates: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of the pods that were made, by the name of their container."""
    calls: list[str] = field(default_factory=list)
    since: list[float] = field(default_factory=list)
    deadline: int = 0
    lingers: float = 0.0
    deleted: dict[str, FakeJob] = field(default_factory=dict)
    gone_at: float = 0.0

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        self.calls.append(arguments[0])
        assert arguments[-1] == "--namespace=team"
        if arguments[0] == self.broken and self.calls.count(self.broken) >= self.number:
            raise RuntimeError(f"kubectl {self.broken} failed")
        return str(getattr(self, f"_{arguments[0]}")(arguments, stdin))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def _create(self, arguments: tuple[str, ...], stdin: str | None) -> str:
        job = json.loads(stdin or "")
        assert all(other.began == self.now for other in self.jobs.values()), "the Job before is not deleted"
        assert job["metadata"]["name"] not in self.jobs
        (container,) = job["spec"]["template"]["spec"]["containers"]
        self.templates[container["name"]] = job["spec"]["template"]
        self.jobs[job["metadata"]["name"]] = FakeJob(self.now, job["spec"]["parallelism"], container["name"])
        self.deadline = job["spec"]["activeDeadlineSeconds"]
        return ""

    def _delete(self, arguments: tuple[str, ...], stdin: str | None) -> str:
        assert f"--selector={LABEL}=ab12" in arguments
        if self.lingers:
            self.deleted, self.gone_at = dict(self.jobs), self.now + self.lingers
        self.jobs.clear()
        return ""

    def _get(self, arguments: tuple[str, ...], stdin: str | None) -> str:
        if arguments[1] == "events":
            assert f"involvedObject.name={next(iter(self.jobs))},reason=FailedCreate" in arguments[2]
            return json.dumps({"items": [{"message": self.refused}] if self.refused else []})
        if self.refused:
            return json.dumps({"items": []})
        if JOB_LABEL in arguments[2]:
            assert arguments[2] == f"--selector={JOB_LABEL} in ({','.join(self.jobs)})"
        elif self.now < self.gone_at:
            names = [f"{job}-{number}" for job, deleted in self.deleted.items() for number in range(deleted.copies)]
            return json.dumps({"items": [{"metadata": {"name": name}} for name in names]})
        pods = [(job, number) for job in self.jobs for number in range(self.jobs[job].copies)]
        return json.dumps({"items": [self._pod(*pod, slot) for slot, pod in enumerate(pods)]})

    def _pod(self, job: str, number: int, slot: int) -> dict[str, Any]:
        began, container = self.jobs[job].began, self.jobs[job].container
        name, spec = {"name": f"{job}-{number}", "labels": {JOB_LABEL: job}}, {"nodeName": "n1"}
        if slot >= self.slots:
            condition = {"type": "PodScheduled", "status": "False", "message": "1 Insufficient gpushare.dev/inference"}
            return {"metadata": name, "status": {"phase": "Pending", "conditions": [condition]}}
        fails = self.fails and self.only in ("", container)
        end = None if self.ends is None else began + self.ends + (self.later if container == "train" else 0.0)
        over = fails or (end is not None and self.now >= end)
        ended = {"exitCode": 1 if fails else 0, "startedAt": stamp(began), "finishedAt": stamp(end or self.now)}
        state = {"terminated": ended} if over else {"running": {}}
        phase = "Failed" if fails else "Succeeded" if over else "Running"
        status = {"phase": phase, "containerStatuses": [{"name": container, "state": state}]}
        return {"metadata": name, "spec": spec, "status": status}

    def _logs(self, arguments: tuple[str, ...], stdin: str | None) -> str:
        job = self.jobs[arguments[1].rpartition("-")[0]]
        assert arguments[2:4] == (f"--container={job.container}", "--timestamps")
        copies = sum(other.copies for other in self.jobs.values())
        begin = job.began + 2
        if arguments[-2].startswith("--since-time="):
            since = datetime.fromisoformat(arguments[-2].removeprefix("--since-time=")).timestamp() - BEGAN
            self.since.append(since)
            begin = max(begin, since)
        seconds = range(math.ceil(begin), int(self.now) + 1)
        rates = {at: (self.rate + self.rises * at) / copies for at in seconds}
        ms = 10 * copies if job.container == "train" else copies
        silent = self.silent and self.only in ("", job.container)
        lines = [f"{stamp(at)} {json.dumps({'rate': rates[at], 'ms': [ms]})}" for at in seconds if not silent]
        return "\n".join([*lines, f"{stamp(self.now)} {self.fails}"])


@dataclass
class FakeAgent:
    """The agent of node n1: after each second of a Job its copies have 100 MiB more than 1000, and the GPU is busy
    for 10 % more. `problem`: why it cannot be read.
    """

    kubectl: FakeKubectl
    problem: str = ""
    questions: int = 0
    others: frozenset[str] = frozenset()

    def __call__(self, node: str, namespace: str, pods: Collection[str]) -> UsageReading:
        assert (node, namespace) == ("n1", "team")
        self.questions += 1
        if self.problem:
            raise UsageUnknownError(self.problem)
        jobs = list(self.kubectl.jobs.values())
        assert len(pods) == sum(job.copies for job in jobs)
        seconds = self.kubectl.now - jobs[0].began
        return UsageReading(len(pods) * (1000 + 100 * int(seconds)), 10.0 * seconds, self.others)


def runner(
    kubectl: FakeKubectl,
    window: float | None = 4.0,
    printed: PrintedFigures = PRINTED,
    agent: FakeAgent | None = None,
    windows: int = 1,
    programs: tuple[TrialProgram, ...] = (APP,),
    told: list[str] | None = None,
) -> ClusterRunner:
    times = RunTimes(1.0, window, 30.0, windows)
    request = TrialRequest(programs, "inference", "team", "ab12", printed, times)
    tell = [].append if told is None else told.append
    return ClusterRunner(request, kubectl, agent or FakeAgent(kubectl), lambda: kubectl.now, kubectl.sleep, tell)


def test_copies_are_measured_in_one_window_of_their_logs_and_deleted() -> None:
    kubectl = FakeKubectl()
    outcome = runner(kubectl).run_case(FOUR, 0)
    assert outcome.ending is Ending.MEASURED, outcome.reason
    assert outcome.windows[0].rates == ((25.0,) * 4,)
    assert outcome.windows[0].p99_ms == (4.0,)
    assert kubectl.jobs == {}


@pytest.mark.parametrize(
    ("kubectl", "ending", "words"),
    [
        (FakeKubectl(slots=3), Ending.NO_ROOM, "1 Insufficient gpushare.dev/inference"),
        (FakeKubectl(fails="CUDA out of memory."), Ending.NO_MEMORY, "a copy got no GPU memory; its last lines:\n"),
        (FakeKubectl(fails="no such file"), Ending.FAILED, "exited with code 1; its last lines:\n"),
        (FakeKubectl(ends=4.0), Ending.FAILED, "exited with code 0: let it run longer, or leave --seconds out"),
        (FakeKubectl(silent=True), Ending.FAILED, "printed no figure within 30 s (--start-timeout); its last lines:\n"),
        (FakeKubectl(refused='pods "a" is forbidden: exceeded quota'), Ending.FAILED, "exceeded quota"),
        (
            FakeKubectl(refused="admission webhook denied the request"),
            Ending.FAILED,
            "admission webhook denied the req",
        ),
    ],
    ids=["no slots", "no memory", "fails", "ends too early", "prints nothing", "quota", "webhook"],
)
def test_copies_that_do_not_work_are_told_and_deleted(kubectl: FakeKubectl, ending: Ending, words: str) -> None:
    outcome = runner(kubectl).run_case(FOUR, 0)
    assert outcome.ending is ending
    assert words in outcome.reason
    assert kubectl.jobs == {}


def test_programs_with_an_end_are_measured_by_their_runs() -> None:
    outcome = runner(FakeKubectl(ends=10.0), window=None, printed=PrintedFigures()).run_case(FOUR, 0)
    assert outcome.windows[0].rates == ((0.1,) * 4,)
    assert outcome.notes == ("runs are timed by Kubernetes' whole seconds",)


def test_each_of_several_windows_has_the_lines_of_its_own_time() -> None:
    """Logs begin after 2 s, the warm-up takes one: the windows have the lines of 4 and 5, 6 and 7, 8 and 9 s."""
    kubectl = FakeKubectl(rises=4.0)
    outcome = runner(kubectl, window=2.0, windows=3).run_case(FOUR, 0)
    assert [window.rates[0][0] for window in outcome.windows] == [25 + 4.5, 25 + 6.5, 25 + 8.5]
    assert kubectl.since == [3.0] * 4 + [5.0] * 4 + [7.0] * 4


def test_a_job_may_run_for_all_windows() -> None:
    kubectl = FakeKubectl()
    runner(kubectl, window=200.0, windows=3).run_case(FOUR, 0)
    assert kubectl.deadline >= 2 * 30 + 1 + 3 * 200


def test_memory_is_the_most_of_all_copies_and_utilisation_of_the_window() -> None:
    """Logs begin after 2 s; the warm-up ends at 3 s; what an agent tells is up to 2 s old."""
    kubectl = FakeKubectl()
    outcome = runner(kubectl).run_case(FOUR, 0)
    assert (outcome.memory_mib, outcome.busy_percent) == (4 * 1700, 60.0), "looks at 5, 6 and 7 s"


def test_usage_of_programs_with_an_end_is_that_until_the_first_ends() -> None:
    outcome = runner(FakeKubectl(ends=10.0), window=None, printed=PrintedFigures()).run_case(FOUR, 0)
    assert (outcome.memory_mib, outcome.busy_percent) == (4 * 1900, 45.0), "looks at 0 to 9 s"


def test_an_agent_that_cannot_be_read_is_asked_once_and_said_so() -> None:
    kubectl = FakeKubectl()
    agent = FakeAgent(kubectl, problem="no right")
    outcome = runner(kubectl, agent=agent).run_case(FOUR, 0)
    assert (outcome.ending, outcome.memory_mib, outcome.busy_percent) == (Ending.MEASURED, None, None)
    assert (outcome.notes, agent.questions) == (("no right",), 1)


def test_a_refused_pod_is_told_at_once_and_not_after_the_time_to_start() -> None:
    kubectl = FakeKubectl(refused="exceeded quota")
    runner(kubectl).run_case(FOUR, 0)
    assert kubectl.now <= 2 * REFUSED_SECONDS + 1


def test_what_a_copy_waits_for_is_told_once_while_it_waits() -> None:
    told: list[str] = []
    runner(FakeKubectl(slots=3), told=told).run_case(FOUR, 0)
    assert told == [
        "waiting for up to 30 s (--start-timeout): pod gpushare-trial-ab12-1-3: 1 Insufficient gpushare.dev/inference"
    ]


@pytest.mark.parametrize("window", [4.0, None])
def test_copies_beside_which_others_used_the_gpu_have_no_figures(window: float | None) -> None:
    kubectl = FakeKubectl(ends=None if window else 10.0)
    agent = FakeAgent(kubectl, others=frozenset({"web/b", "web/a"}))
    printed = PRINTED if window else PrintedFigures()
    outcome = runner(kubectl, window, printed, agent).run_case(FOUR, 0)
    assert (outcome.ending, outcome.windows) == (Ending.FAILED, ())
    assert outcome.reason.startswith("others used the same GPU meanwhile (web/a, web/b)")


def test_a_latency_that_no_line_has_is_told() -> None:
    misspelt = PrintedFigures(FigureReader(field="rate"), latency=FigureReader(field="lat"))
    outcome = runner(FakeKubectl(), printed=misspelt).run_case(FOUR, 0)
    assert [note for note in outcome.notes if "no line within the windows had a latency" in note]


def pair(kubectl: FakeKubectl, **options: Any) -> ClusterRunner:
    return runner(kubectl, programs=(APP, TRAIN), **options)


def test_each_program_of_a_pair_has_a_job_of_its_own_and_its_own_figures() -> None:
    kubectl = FakeKubectl()
    runs = pair(kubectl)
    windows = [runs.run_case(case, 0).windows[0] for case in (FIRST, SECOND, PAIR)]
    assert [window.rates for window in windows] == [((100.0,), ()), ((), (100.0,)), ((50.0,), (50.0,))]
    assert [window.p99_ms for window in windows] == [(1.0, None), (None, 10.0), (2.0, 20.0)]
    assert (kubectl.calls.count("create"), kubectl.jobs) == (4, {})


def test_each_of_three_programs_has_a_job_of_its_own_and_its_own_figures() -> None:
    kubectl = FakeKubectl()
    runs = runner(kubectl, programs=(APP, TRAIN, PREPARE))
    alone, together = (runs.run_case(TrialCase(mode, copies), 0).windows[0] for mode, copies in (
        (TrialMode.ALONE, (0, 0, 1)), (TrialMode.SLOTS, (1, 1, 1))
    ))  # fmt: skip
    assert alone.rates == ((), (), (100.0,))
    assert [round(rate, 3) for (rate,) in together.rates] == [33.333] * 3
    assert kubectl.jobs == {}


def test_memory_of_a_pair_is_that_of_both() -> None:
    outcome = pair(FakeKubectl()).run_case(PAIR, 0)
    assert (outcome.memory_mib, outcome.busy_percent) == (2 * 1700, 60.0)


def test_a_program_of_a_pair_that_ends_long_before_the_other_is_told() -> None:
    """Both count as done once the last one is: 10 and 25 seconds alone make 25 beside each other."""
    outcome = pair(FakeKubectl(ends=10.0, later=15.0), window=None, printed=PrintedFigures()).run_case(PAIR, 0)
    assert outcome.windows[0].rates == ((0.04,), (0.04,))
    assert outcome.notes == (
        "runs are timed by Kubernetes' whole seconds",
        "copies ended up to 15.0 s apart: they did not run beside each other all the time",
    )


def test_ends_within_a_whole_second_are_not_said_to_be_apart() -> None:
    outcome = pair(FakeKubectl(ends=1.0, later=1.0), window=None, printed=PrintedFigures()).run_case(PAIR, 0)
    assert outcome.notes == ("runs are timed by Kubernetes' whole seconds",)


@pytest.mark.parametrize(
    ("kubectl", "ending", "words"),
    [
        (
            FakeKubectl(slots=1),
            Ending.NO_ROOM,
            "pod gpushare-trial-ab12-2-0 of program 2 (train.yaml): 1 Insufficient gpushare.dev/inference",
        ),
        (
            FakeKubectl(fails="CUDA out of memory.", only="train"),
            Ending.NO_MEMORY,
            "program 2 (train.yaml) got no GPU memory; its last lines:\n",
        ),
        (FakeKubectl(fails="no", only="app"), Ending.FAILED, "program 1 (app.yaml) exited with code 1"),
        (
            FakeKubectl(silent=True, only="train"),
            Ending.FAILED,
            "of program 2 (train.yaml) printed no figure within 30 s (--start-timeout)",
        ),
    ],
    ids=["one slot", "no memory", "fails", "prints nothing"],
)
def test_the_broken_program_of_a_pair_is_named_and_both_are_deleted(
    kubectl: FakeKubectl, ending: Ending, words: str
) -> None:
    outcome = pair(kubectl).run_case(PAIR, 0)
    assert outcome.ending is ending
    assert words in outcome.reason
    assert kubectl.jobs == {}


def test_a_program_of_a_pair_without_an_end_is_told() -> None:
    outcome = pair(FakeKubectl(ends=9.0, later=90.0), window=None, printed=PrintedFigures()).run_case(PAIR, 0)
    assert outcome.reason.startswith("program 2 (train.yaml) had not ended after 30 s (--start-timeout;")


@pytest.mark.parametrize(("broken", "number"), [("create", 1), ("create", 2), ("get", 1), ("logs", 1)], ids=str)
def test_an_error_of_kubectl_deletes_the_jobs(broken: str, number: int) -> None:
    kubectl = FakeKubectl(broken=broken, number=number)
    with pytest.raises(RuntimeError, match=f"kubectl {broken} failed"):
        pair(kubectl).run_case(PAIR, 0)
    assert "delete" in kubectl.calls
    assert kubectl.jobs == {}


def test_a_program_of_a_pair_that_prints_too_seldom_is_told() -> None:
    seldom = PrintedFigures(PRINTED.rate, counts=True)
    outcome = pair(FakeKubectl(), window=0.5, printed=seldom).run_case(PAIR, 0)
    assert re.match(r"pod \S+ of program 1 \(app.yaml\): \d lines with a count in a window of 0.5 s", outcome.reason)


def test_no_case_begins_beside_pods_of_the_case_before() -> None:
    kubectl = FakeKubectl(lingers=300.0)
    trial = runner(kubectl)
    assert trial.run_case(FOUR, 0).ending is Ending.MEASURED
    jobs = kubectl.calls.count("create")
    outcome = trial.run_case(FOUR, 1)
    assert outcome.ending is Ending.FAILED
    assert outcome.reason.startswith("pod gpushare-trial-ab12-1-0, pod ")
    assert outcome.reason.endswith("of the case before had not ended 120 s after the deletion")
    assert kubectl.calls.count("create") == jobs


def test_an_interruption_deletes_the_jobs() -> None:
    kubectl = FakeKubectl()

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    times = RunTimes(1.0, 4.0, 30.0)
    request = TrialRequest((APP, TRAIN), "inference", "team", "ab12", PRINTED, times)
    with pytest.raises(KeyboardInterrupt):
        ClusterRunner(request, kubectl, FakeAgent(kubectl), lambda: 0.0, interrupted).run_case(PAIR, 0)
    assert kubectl.calls.count("create") == 2
    assert kubectl.jobs == {}


CLASS, THREADS, BESIDE = (f"gpushare.dev/{name}" for name in ("class", "threads", "threads-beside-protected"))


@pytest.mark.parametrize(
    ("case", "best_effort", "service", "job", "asked"),
    [
        (TrialCase(TrialMode.CAPACITY, (1, 0)), True, {CLASS: "Protected"}, None, None),
        (FIRST, True, {CLASS: "Protected"}, None, "40"),
        (FIRST, False, {CLASS: "Normal"}, None, "40"),
        (SECOND, True, None, {CLASS: "Normal"}, None),
        (
            TrialCase(TrialMode.SLOTS, (1, 1), JobWay(False, 25)),
            True,
            {CLASS: "Normal"},
            {CLASS: "Normal", THREADS: "25"},
            "40",
        ),
        (
            TrialCase(TrialMode.SLOTS, (1, 1), JobWay(True, 50)),
            True,
            {CLASS: "Protected"},
            {CLASS: "BestEffort", BESIDE: "50"},
            "40",
        ),
    ],
    ids=["what it can do", "alone", "alone without a class", "the job alone", "a cap", "giving way"],
)
def test_a_service_and_its_job_run_as_the_case_says(
    case: TrialCase, best_effort: bool, service: dict[str, str] | None, job: dict[str, str] | None, asked: str | None
) -> None:
    kubectl = FakeKubectl()
    terms = ProtectTerms(Slo(99, 20.0), None, 4.0, best_effort=50 if best_effort else 0)
    request = TrialRequest(
        (APP, TRAIN), "inference", "team", "ab12", PRINTED, RunTimes(1.0, 4.0, 30.0), True, alone_classes(terms)
    )
    ran = ClusterRunner(request, kubectl, FakeAgent(kubectl), lambda: kubectl.now, kubectl.sleep)
    assert ran.run_case(case, 0, 40.0).ending is Ending.MEASURED
    made = kubectl.templates
    annotations = {
        name: made[name]["metadata"].get("annotations") if name in made else None for name in ("app", "train")
    }
    assert annotations == {"app": service, "train": job}
    environment = [each.get("env", []) for name in made for each in made[name]["spec"]["containers"]]
    assert environment[0] == ([{"name": "OFFERED_RATE", "value": asked}] if asked else [])
    assert not any(environment[1:])
    assert APP.template == {"metadata": {}, "spec": {"containers": [{"name": "app"}]}}


def ran(kubectl: FakeKubectl, plan: TrialPlan, rate: Callable[[TrialCase], float]) -> list[CaseOutcome]:
    outcomes: list[CaseOutcome] = []
    while (following := next_run(plan, outcomes)) is not None:
        kubectl.rate = rate(following[1])
        programs = (APP, TRAIN)[: plan.programs]
        outcomes.append(runner(kubectl, programs=programs).run_case(following[1], following[0]))
    return outcomes


def record(plan: TrialPlan, outcomes: list[CaseOutcome], timed: bool = True) -> TrialRecord:
    programs = [[program.name] for program in (APP, TRAIN)[: plan.programs]]
    return TrialRecord(programs, plan, RunTimes(1.0, 4.0, 30.0), outcomes, timed)


def test_the_report_has_the_table_and_the_verdict() -> None:
    plan = TrialPlan.of([TrialMode.SLOTS], [2, 4, 8], 1, 2, 1)
    outcomes = ran(FakeKubectl(), plan, lambda case: {1: 100.0, 2: 190.0, 4: 300.0, 8: 301.0}[case.total])
    report = report_of(record(plan, outcomes), SHARE, flags=["--context=a"])
    assert report.code == 0
    assert report.data["patch"] == {"spec": {"clients": {"perGpu": 2, "memory": {"default": "2Gi"}}}}
    (applied,) = [text for label, text in report.parts[-1].lines if not label]  # type: ignore[union-attr]
    assert applied.startswith('kubectl --context=a patch gpushare inference --type merge -p \'{"spec":{')
    assert report.data["verdict"]["sentence"].startswith(
        "Sharing helps: 2 copies in slots of the share do 1.90 times the work of one alone"
    ), "four copies wait four times as long"
    assert [row["copies"] for row in report.data["rows"]] == [[1], [2], [4], [8]]


def test_a_pairs_report_has_the_figures_of_each_and_two_clients() -> None:
    """Each agent's figures end at 1700 MiB a copy, a tenth more of which is 2048 in steps."""
    plan = TrialPlan.of([TrialMode.SLOTS], [2], 2, 1, 1)
    report = report_of(record(plan, ran(FakeKubectl(), plan, lambda case: 100.0 * case.total * 0.8)), SHARE)
    assert report.code == 0
    table, told, applied = report.parts
    assert isinstance(table, Table)
    assert [row[:2] for row in table.rows] == [("1+0", "80 + –"), ("0+1", "– + 80"), ("1+1", "80 + 80")]
    assert [row[5] for row in table.rows] == ["1 + –", "– + 10", "2 + 20"]
    assert isinstance(told, Sentences)
    assert [text for _, text in told.lines] == [
        "1+0 is program 1, app.yaml; 0+1 is program 2, train.yaml",
        "Sharing helps: the pair in slots of the share does the work of 2.00 GPUs that each run one of the programs "
        "(measured once, so its spread is not known), the slowest at 100% of its speed alone, p99 2.00 times that "
        "alone.",
    ]
    assert isinstance(applied, Sentences)
    assert report.data["patch"] == {"spec": {"clients": {"perGpu": 2, "memory": {"default": "2Gi"}}}}
    again = TrialRecord.from_json(json.loads(json.dumps(report.data)))
    assert again.programs == (("app.yaml",), ("train.yaml",))
    assert again.verdict == record(plan, list(again.outcomes)).verdict


@pytest.mark.parametrize("timed", [True, False], ids=["on a GPU", "on a simulated one"])
@pytest.mark.parametrize(
    ("programs", "only", "words"),
    [
        (1, "", "one copy alone: failed (a copy exited"),
        (2, "app", "program 1 alone: failed (program 1 (app.yaml) exited"),
        (2, "train", "program 2 alone: failed (program 2 (train.yaml) exited"),
    ],
)
def test_a_program_that_fails_alone_is_a_problem(programs: int, only: str, words: str, timed: bool) -> None:
    plan = TrialPlan.of([TrialMode.SLOTS], [2], programs, 1, 1)
    outcomes = ran(FakeKubectl(fails="broken", only=only), plan, lambda _: 1.0)
    report = report_of(record(plan, outcomes, timed), SHARE)
    assert report.code == 1
    assert words in report.data["stopped"][0]


def test_figures_on_simulated_gpus_get_no_verdict() -> None:
    plan = TrialPlan.of([TrialMode.SLOTS], [2], 1, 1, 1)
    report = report_of(record(plan, ran(FakeKubectl(), plan, lambda _: 100.0), timed=False), SHARE)
    assert (report.data["verdict"]["answer"], report.data["patch"]) == ("untimed", None)


def test_a_log_is_read_by_the_times_of_its_lines() -> None:
    text = '2026-01-01T00:00:02.123456789Z {"rate": 5}\nno time {"rate": 6}\n2026-99-01T00:00:02Z {"rate": 7}\n'
    (line,) = read_log(text, PRINTED)
    assert (round(line.at - BEGAN, 3), line.rates) == (2.123, (5.0,))
    assert tail_of("") == "(it printed nothing)"
    assert tail_of("2026-01-01T00:00:02Z the end\n") == "the end"
