"""`kubectl gpushare trial`: runs copies of a Job or Pod in slots of a share, and says whether sharing pays; or what may
run beside a service so that it keeps its latency.

One copy alone, then several beside each other on the share's GPU, the user's own images unchanged; of several programs,
each of them alone, then all. The rate is read from their logs. Whatever happens, what the trial made is deleted;
docs/compare.md goes through it.
"""

import argparse
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.api.client_class import ClientClass
from gpushare.api.gpushare import GpuShare
from gpushare.kube.resources import GPU_NODES, GPU_SHARES, KubeError, Object
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster, installed
from gpushare.kubectl.failures import FAILED, INTERRUPTED, UnreachableError, WrongInputError, require
from gpushare.kubectl.output.report import Column, Report, Sentences, Table
from gpushare.kubectl.output.table import plain_lines
from gpushare.kubectl.rules.recommend.advice import client_patch, patch_command
from gpushare.kubectl.rules.recommend.memory import least_memory, memory_patch
from gpushare.kubectl.rules.trial.apply import annotations_of, as_yaml, memory_for, pod_of, with_class
from gpushare.kubectl.rules.trial.cases import CaseOutcome, TrialCase, TrialMode, TrialPlan, counted, news
from gpushare.kubectl.rules.trial.options import (
    add_figures,
    add_plan,
    add_protect,
    add_times,
    figures_of,
    plan_of,
    terms_of,
    times_of,
)
from gpushare.kubectl.rules.trial.protect import ProtectTerms
from gpushare.kubectl.rules.trial.records import TrialRecord
from gpushare.kubectl.rules.trial.rows import HEAD, TrialRow, cells_of
from gpushare.kubectl.rules.trial.search import following, offered_rate
from gpushare.kubectl.rules.trial.verdict import TrialVerdict
from gpushare.kubectl.trial.manifest import (
    LARGEST_MANIFEST,
    ManifestError,
    asks_for_gpu,
    container_of,
    obstacles,
    read_template,
)
from gpushare.kubectl.trial.runner import ClusterRunner, TrialProgram, TrialRequest
from gpushare.kubectl.trial.usage import AgentUsage
from gpushare.kubectl.views.objects import read
from gpushare.messages.wording import count_of

START_SECONDS = 600.0
"""An image may have to be pulled."""
FREED_SECONDS, LOOK_SECONDS = 45.0, 1.0
"""A share counts a slot as held for a while after its pod is gone (28 s seen): that of the trial before, say."""
SHOWN = ("copies", "per second", "× alone", "each copy", "p50 ms", "p99 ms", "GPU busy", "MiB each")
"""The columns of the table that a trial in a cluster has figures for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--filename", metavar="FILE", help="YAML file with one Job or Pod; - for standard input")
    add_protect(parser, "FILE", "-f")
    parser.add_argument(
        "--beside",
        metavar="FILE",
        action="append",
        default=[],
        help="YAML file with one Job or Pod of another program: measures one copy of each beside each other, in place "
        "of copies of one; - for standard input. May be given several times",
    )
    parser.add_argument("--share", required=True, metavar="NAME", help="the GpuShare whose slots the copies take")
    add_plan(parser)
    add_figures(parser, "the log")
    add_times(parser, START_SECONDS)
    options.add_output(parser, names=False, watch=False)


def share_for(cluster: Cluster, name: str, copies: int, seconds: float = FREED_SECONDS) -> Object:
    """The share, once nobody else has slots of it: waits, for so long, for those that were held a moment ago.

    WrongInputError: copies would not be beside each other, or not alone even then.
    """
    end = time.monotonic() + seconds
    said = False
    while True:
        shares = {share["metadata"]["name"]: share for share in installed(cluster.items(GPU_SHARES))}
        require("gpushare", name, shares)
        problems = obstacles(shares[name], copies)
        if not problems:
            return shares[name]
        held = (shares[name].get("status") or {}).get("slots", {}).get("used", 0)
        if not (held and len(problems) == 1) or time.monotonic() >= end:
            raise WrongInputError("; ".join(problems))
        if not said:
            are = "is" if held == 1 else "are"
            _tell(
                f"{count_of(held, 'slot')} {are} counted as held, as for a while after a pod has ended: waiting for up "
                f"to {seconds:.0f} s"
            )
            said = True
        time.sleep(min(LOOK_SECONDS, seconds / 10))


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    """Raises WrongInputError for a file, a share or an option that cannot be used."""
    try:
        if args.filename is None and args.protect is None:
            raise ValueError("-f: name the file of a Job or Pod, or a service's by --protect")
        terms = terms_of(args, args.filename is not None)
        plan = plan_of(args, [TrialMode.SLOTS], 1 + len(args.beside), terms)
        programs = programs_of(args.filename, args.beside, args.protect)
        printed = figures_of(args)
        times = times_of(args, printed)
    except ValueError as error:
        raise WrongInputError(str(error)) from None
    (share,) = read(GpuShare, [share_for(cluster, args.share, plan.fewest)])
    timed = not any((node.get("status") or {}).get("simulated") for node in installed(cluster.items(GPU_NODES)))
    namespace = args.namespace or cluster.namespace().result()
    terms = bounded(terms, share) if terms else None
    plan, classes = replace(plan, protect=terms), terms is not None and share.classes is not None
    request = TrialRequest(
        programs, args.share, namespace, secrets.token_hex(3), printed, times, classes, alone_classes(terms)
    )
    for program in programs:
        if not asks_for_gpu(program.template):
            _tell(f"{program.name} asks for no GPU: its container {program.container} gets the slot")
    runner = ClusterRunner(request, cluster, AgentUsage(cluster, args.system_namespace), tell=_tell)
    with _one_signal():
        outcomes, ended, code = measured(plan, request, runner)
    names = [[program.name] for program in programs]
    record = TrialRecord(names, plan, times, outcomes, timed, {"share": share.name}, ended=ended)
    report = report_of(record, share, options.connection_flags(args), objects_of(record, request, share))
    return replace(report, code=code) if ended else report


def measured(plan: TrialPlan, request: TrialRequest, runner: ClusterRunner) -> tuple[list[CaseOutcome], str, int]:
    """What was measured; why it is not all, and the exit status for that. Raises what ended a trial without a case."""
    outcomes: list[CaseOutcome] = []
    said = set[str]()
    try:
        while (next_case := following(plan, outcomes)) is not None:
            repeat, case = next_case
            _tell(f"repeat {repeat + 1}: {_counted(case, request)}{f', the job {case.way}' if case.way else ''}")
            outcomes.append(outcome := runner.run_case(case, repeat, offered_rate(plan.protect, outcomes)))
            for note in news((outcome.reason, *outcome.notes), said):
                _tell(note)
    except KeyboardInterrupt:
        _tell("interrupted: its Jobs are being deleted")
        if not outcomes:
            raise
        return outcomes, "it was interrupted", INTERRUPTED
    except (KubeError, UnreachableError) as error:
        if not outcomes:
            raise
        return outcomes, str(error), FAILED
    finally:
        runner.delete_all()
    return outcomes, "", 0


def _tell(text: str) -> None:
    print(plain_lines(text), file=sys.stderr, flush=True)


def bounded(terms: ProtectTerms, share: GpuShare) -> ProtectTerms:
    """The terms with the most that a job may have in this share, by class. WrongInputError: there is no way to try."""
    classes = share.classes
    allowed = classes.allowed if classes else [ClientClass.NORMAL]
    both = ClientClass.PROTECTED in allowed and ClientClass.BEST_EFFORT in allowed
    if ClientClass.NORMAL not in allowed and not both:
        raise WrongInputError(
            f"GpuShare {share.name} allows {', '.join(allowed)} alone (spec.clients.classes.allowed): a job runs "
            "beside a service as Normal, or as BestEffort beside Protected"
        )
    return replace(
        terms,
        normal=share.clients.threads.max if ClientClass.NORMAL in allowed else 0,
        best_effort=classes.best_effort.threads_beside_protected if classes and both else 0,
    )


def alone_classes(terms: ProtectTerms | None) -> tuple[ClientClass, ClientClass]:
    """Of the service and of the job, while each runs alone: those of the ways that can be tried, the freest first."""
    return (
        ClientClass.PROTECTED if terms and terms.best_effort else ClientClass.NORMAL,
        ClientClass.NORMAL if terms is None or terms.normal else ClientClass.BEST_EFFORT,
    )


def objects_of(record: TrialRecord, request: TrialRequest, share: GpuShare) -> list[Object]:
    """The share and the two pods with which a service keeps its objective; empty where nothing follows. Pure."""
    best = record.verdict.best
    way = best.case.way if best is not None else None
    if way is None:
        return []
    wire = share.wire()
    kept = {key: wire[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": share.name}}
    pods = [
        pod_of(
            f"{name}-{request.name}",
            program.template,
            program.container,
            share.name,
            annotations_of(way, name == "service", request.classes),
        )
        for name, program in zip(("service", "job"), request.programs, strict=True)
    ]
    return [with_class(kept, way, request.namespace), *pods]


def report_of(
    record: TrialRecord, share: GpuShare, flags: Sequence[str] = (), objects: Sequence[Object] = ()
) -> Report:
    """The table, what was left out, the verdict, and the change of the share. Pure. Its code is 1 where a program does
    not work alone. `flags`: of kubectl's connection. `objects`: to apply, in place of a change.
    """
    rows, verdict = record.rows, record.verdict
    change = change_of(verdict, rows, share) if record.plan.protect is None else None
    columns = [HEAD.index(name) for name in SHOWN]
    table = Table(
        [Column(name.upper()) for name in SHOWN],
        [tuple(cells_of(row, record.timed)[column] for column in columns) for row in rows],
    )
    ended = [f"This trial is not complete: {record.ended}."] if record.ended else []
    notes = [*ended, *_which(record), *record.stopped, *dict.fromkeys(note for row in rows for note in row.notes)]
    sentences = Sentences([*(("", note) for note in notes), ("", verdict.sentence)])
    apply = [] if change is None else [("to apply:", ""), ("", patch_command(share.name, change, flags))]
    apply += [("to apply:", ""), *(("", line) for line in as_yaml(objects).splitlines())] if objects else []
    alone = (run for run in record.outcomes if run.case.total == 1 and run.repeat == 0)
    works = all(outcome.windows for outcome in alone)
    data = record.as_json() | ({"patch": change} if record.plan.protect is None else {"apply": list(objects)})
    return Report(data, [table, sentences, Sentences(apply, whole=True)], code=0 if works else 1)


def change_of(verdict: TrialVerdict, rows: Sequence[TrialRow], share: GpuShare) -> dict[str, Any] | None:
    """A merge patch of the share: as many clients as pay, each with the most memory that a copy was seen with and a
    little more. None: there is nothing to change. Pure.

    Memory is never raised: every copy worked with what it was granted. Threads stay as they were measured.
    """
    best = verdict.best
    if best is None:
        return None
    clients: dict[str, Any] = {}
    if best.case.total != share.clients.per_gpu:
        clients["perGpu"] = best.case.total
    seen = [row.memory_mib for row in rows if row.memory_mib is not None and row.case.total <= best.case.total]
    if (
        seen
        and (wanted := max(memory_for(max(seen)), least_memory(share, share.clients.threads.max)))
        < share.memory_default_mib
    ):
        clients["memory"] = memory_patch(share, wanted)
    return client_patch(**clients) if clients else None


def programs_of(
    filename: str | None, beside: Sequence[str] = (), protect: str | None = None
) -> tuple[TrialProgram, ...]:
    """Each called after its file, or, where two files have one name, after its path. Raises ManifestError naming the
    option and its file.
    """
    first = filename if filename is not None else str(protect)
    files = [first, *beside]
    if files.count("-") > 1:
        raise ManifestError("--beside -: standard input is that of another program too: give all but one as files")
    called = ["standard input" if name == "-" else Path(name).name for name in files]
    called = called if len(set(called)) == len(called) else files
    options = ["--protect" if filename is None else "--filename", *("--beside" for _ in beside)]
    return tuple(_program(*named) for named in zip(options, files, called, strict=True))


def _program(option: str, file: str, name: str) -> TrialProgram:
    try:
        template = read_template(_text(file))
        return TrialProgram(name, template, container_of(template))
    except ManifestError as error:
        raise ManifestError(f"{option} {file}: {error}") from None


def _counted(case: TrialCase, request: TrialRequest) -> str:
    """What runs, with the file of one of several programs."""
    if case.total == 1 and (told := request.told(case.copies.index(1))):
        return told
    return counted(case)


def _which(record: TrialRecord) -> list[str]:
    """Which of several programs is which, in the table and in the sentences."""
    number = len(record.programs)
    if number < 2:
        return []
    told = (
        f"{'+'.join(str(int(other == place)) for other in range(number))} is program {place + 1}, {' '.join(program)}"
        for place, program in enumerate(record.programs)
    )
    return ["; ".join(told)]


def _text(name: str) -> str:
    """One character more than is taken, so that a larger file is refused and not cut. Raises ManifestError."""
    try:
        if name == "-":
            return sys.stdin.read(LARGEST_MANIFEST + 1)
        with Path(name).open() as file:
            return file.read(LARGEST_MANIFEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ManifestError(f"cannot be read: {why}") from None


@contextmanager
def _one_signal() -> Iterator[None]:
    """The first SIGINT or SIGTERM raises KeyboardInterrupt; a further one does not interrupt the clean-up."""

    def interrupted(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, interrupted) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
