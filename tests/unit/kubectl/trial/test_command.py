"""A trial begins where its copies will be alone, and waits for slots that were held a moment ago. What it cannot run is
refused by option and file.
"""

import argparse
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.kube.resources import KubeError
from gpushare.kubectl.failures import WrongInputError
from gpushare.kubectl.rules.trial.cases import CaseOutcome, Ending, TrialCase, TrialMode, TrialPlan, WindowFigures
from gpushare.kubectl.rules.trial.options import RunTimes
from gpushare.kubectl.rules.trial.printed import PrintedFigures
from gpushare.kubectl.rules.trial.protect import ProtectTerms, Slo
from gpushare.kubectl.rules.trial.records import TrialRecord
from gpushare.kubectl.trial.command import (
    add_arguments,
    alone_classes,
    bounded,
    measured,
    programs_of,
    report_of,
    run,
    share_for,
)
from gpushare.kubectl.trial.runner import TrialRequest
from tests.unit.kubectl.trial.test_manifest import JOB, POD, share, text


class SharesOverTime:
    """The shares of a cluster: the share as each list shows it; the last one stays."""

    def __init__(self, *shown: dict[str, Any]) -> None:
        self.shown = list(shown)

    def items(self, _: object) -> Future[list[dict[str, Any]]]:
        asked: Future[list[dict[str, Any]]] = Future()
        asked.set_result([self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]])
        return asked


SECONDS = 0.05


def test_slots_of_the_trial_before_are_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = SharesOverTime(share(used=4), share(used=4), share())
    share_for(cluster, "inference", 2, SECONDS)  # type: ignore[arg-type]
    assert capsys.readouterr().err.count("4 slots are counted as held") == 1


def test_slots_that_stay_held_refuse_a_trial() -> None:
    with pytest.raises(WrongInputError, match="3 slots of GpuShare inference are held"):
        share_for(SharesOverTime(share(used=3)), "inference", 2, SECONDS)  # type: ignore[arg-type]


def test_a_share_that_serves_for_no_trial_refuses_it_at_once() -> None:
    cluster = SharesOverTime(share(used=3, gpus=2), share())
    with pytest.raises(WrongInputError, match="has 2 ready GPUs"):
        share_for(cluster, "inference", 2, SECONDS)  # type: ignore[arg-type]


class Interrupted:
    """Runs one case, and is then ended."""

    def __init__(self, by: BaseException, cases: int = 1) -> None:
        self.by, self.cases, self.deleted = by, cases, False

    def run_case(self, case: TrialCase, repeat: int, rate: float | None = None) -> CaseOutcome:
        if not self.cases:
            raise self.by
        self.cases -= 1
        return CaseOutcome(case, repeat, Ending.MEASURED, (WindowFigures(((100.0,),), (None,), (None,)),))

    def delete_all(self) -> None:
        self.deleted = True


PLAN = TrialPlan((TrialMode.SLOTS,), (2, 4))
REQUEST = TrialRequest((), "inference", "team", "ab12", PrintedFigures(), RunTimes(1.0, 4.0, 30.0))
BROKEN = KubeError(500, "InternalError", "no leader")


@pytest.mark.parametrize(
    ("by", "ended", "code"), [(KeyboardInterrupt(), "it was interrupted", 130), (BROKEN, "no leader", 2)], ids=str
)
def test_what_was_measured_before_an_end_is_kept(by: BaseException, ended: str, code: int) -> None:
    runner = Interrupted(by)
    outcomes, why, status = measured(PLAN, REQUEST, runner)  # type: ignore[arg-type]
    assert (len(outcomes), ended in why, status, runner.deleted) == (1, True, code, True)
    record = TrialRecord([["app.yaml"]], PLAN, REQUEST.times, outcomes, timed=True, ended=why)
    shared = share(clients={"perGpu": 8, "memory": {"default": "8Gi"}})
    text = str(report_of(record, GpuShare.model_validate(shared)).parts)
    assert "This trial is not complete" in text


def test_an_end_before_anything_was_measured_is_that_of_the_command() -> None:
    runner = Interrupted(KeyboardInterrupt(), cases=0)
    with pytest.raises(KeyboardInterrupt):
        measured(PLAN, REQUEST, runner)  # type: ignore[arg-type]
    assert runner.deleted


def test_a_share_with_one_slot_refuses_a_pair(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text(JOB))
    cluster = SharesOverTime(share(per_gpu=1))
    with pytest.raises(WrongInputError, match=r"has 1 slot on a GPU .* the trial needs 2 beside each other"):
        run_in(cluster, tmp_path, "-f", "job.yaml", "--beside", "job.yaml")


TERMS = ProtectTerms(Slo(99, 20.0), None, 4.0)
BOUNDS: list[tuple[dict[str, Any], tuple[int, int], tuple[str, str]]] = [
    ({"threads": {"max": 60}}, (60, 0), ("Normal", "Normal")),
    ({"threads": {"max": 60}, "classes": {}}, (60, 50), ("Protected", "Normal")),
    ({"classes": {"allowed": ["Normal", "BestEffort"]}}, (100, 0), ("Normal", "Normal")),
    (
        {
            "classes": {
                "default": "BestEffort",
                "allowed": ["Protected", "BestEffort"],
                "bestEffort": {"threadsBesideProtected": 80},
            }
        },
        (0, 80),
        ("Protected", "BestEffort"),
    ),
]


@pytest.mark.parametrize(("clients", "most", "alone"), BOUNDS, ids=["none", "all", "no protected", "no normal"])
def test_what_is_tried_is_what_the_share_allows(
    clients: dict[str, Any], most: tuple[int, int], alone: tuple[str, str]
) -> None:
    model = GpuShare.model_validate(share(clients={"perGpu": 2, "memory": {"default": "8Gi"}, **clients}))
    terms = bounded(TERMS, model)
    assert (terms.normal, terms.best_effort) == most
    assert alone_classes(terms) == alone
    assert [ways[0].percent for ways in terms.ways()] == [percent for percent in most if percent]


def test_a_share_in_which_a_job_may_run_in_no_way_is_refused() -> None:
    classes = {"default": "BestEffort", "allowed": ["BestEffort"]}
    model = GpuShare.model_validate(share(clients={"perGpu": 2, "memory": {"default": "8Gi"}, "classes": classes}))
    with pytest.raises(WrongInputError, match="GpuShare inference allows BestEffort alone"):
        bounded(TERMS, model)


TWO = [{"name": "a"}, {"name": "b"}]
REFUSED: dict[str, tuple[list[str], str]] = {
    "copies of a pair": (
        ["-f", "job.yaml", "--beside", "pod.yaml", "--copies", "2", "4"],
        "--copies 2 4: is for copies of one program, and --beside measures one copy of each: leave one of the two "
        "options out",
    ),
    "a pair to its end, by its own rates": (
        ["-f", "job.yaml", "--beside", "pod.yaml", "--rate-json", "rate"],
        "--beside: give --seconds too: programs that run to their end do not end together, and the last to end "
        "would print the rate that it has alone",
    ),
    "no first file": (["-f", "none.yaml"], "--filename none.yaml: cannot be read: No such file or directory"),
    "no second file": (
        ["-f", "job.yaml", "--beside", "none.yaml"],
        "--beside none.yaml: cannot be read: No such file or directory",
    ),
    "a first file without a program": (
        ["-f", "two.yaml", "--beside", "pod.yaml"],
        "--filename two.yaml: the file has 2 Jobs and Pods among 2 documents: give one with exactly one",
    ),
    "a second file without a program": (
        ["-f", "job.yaml", "--beside", "two.yaml"],
        "--beside two.yaml: the file has 2 Jobs and Pods among 2 documents: give one with exactly one",
    ),
    "a second pod whose GPU container is not plain": (
        ["-f", "job.yaml", "--beside", "unclear.yaml"],
        "--beside unclear.yaml: 0 of 2 containers ask for a GPU: give one of them nvidia.com/gpu: 1 or a slot, so that "
        "the trial knows whose figures to read",
    ),
    "both from standard input": (
        ["-f", "-", "--beside", "-"],
        "--beside -: standard input is that of another program too: give all but one as files",
    ),
    "neither a program nor a service": (
        ["--beside", "job.yaml"],
        "-f: name the file of a Job or Pod, or a service's by --protect",
    ),
    "a service and a program": (
        ["-f", "job.yaml", "--protect", "job.yaml", "--slo", "p99=1ms"],
        "--protect: takes the place of the program that is compared: leave that out",
    ),
    "no repeats": (["-f", "job.yaml", "--beside", "pod.yaml", "--repeats", "0"], "--repeats 0: 1 to 100"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_trial_cannot_run_is_refused_by_option_and_file(case: str, tmp_path: Path) -> None:
    for name, manifests in {"job": [JOB], "pod": [POD], "two": [JOB, POD]}.items():
        (tmp_path / f"{name}.yaml").write_text(text(*manifests))
    (tmp_path / "unclear.yaml").write_text(text({"kind": "Pod", "spec": {"containers": TWO}}))
    words, sentence = REFUSED[case]
    with pytest.raises(WrongInputError) as refused:
        run_in(SharesOverTime(share()), tmp_path, *words)
    assert str(refused.value).replace(f"{tmp_path}/", "") == sentence


@pytest.mark.parametrize(
    ("files", "called"),
    [
        (["a/job.yaml"], ["job.yaml"]),
        (["a/job.yaml", "b/pod.yaml"], ["job.yaml", "pod.yaml"]),
        (["a/job.yaml", "b/job.yaml", "c/pod.yaml"], ["a/job.yaml", "b/job.yaml", "c/pod.yaml"]),
    ],
)
def test_programs_are_told_apart_by_their_files(files: list[str], called: list[str], tmp_path: Path) -> None:
    first, *others = paths = [tmp_path / file for file in files]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text(JOB))
    assert [
        program.name.removeprefix(f"{tmp_path}/") for program in programs_of(str(first), [*map(str, others)])
    ] == called


def run_in(cluster: SharesOverTime, folder: Path, *words: str) -> None:
    """The command, with files of that folder."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    files = [str(folder / word) if word.endswith(".yaml") else word for word in words]
    run(cluster, parser.parse_args([*files, "--share", "inference"]))  # type: ignore[arg-type]
