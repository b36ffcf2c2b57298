"""The program: what a user sees where it cannot do what he asks, and what it imports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.kubectl import main as program
from gpushare.kubectl.failures import WrongInputError, require, unknown
from tests.unit.kubectl import stand_in
from tests.unit.kubectl.cluster_objects import event, pod

HEAVY = ("aiohttp", "kubernetes", "kopf", "grpclib", "rich", "prometheus_client", "yaml", "asyncio")


def plugin(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpushare.kubectl.main", *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("command", [["status"], ["top"], ["why", "a"], ["events"], ["check"], ["describe", "pod/a"]])
def test_without_a_cluster_each_command_says_so_in_one_sentence(tmp_path: Path, command: list[str]) -> None:
    done = plugin(*command, **stand_in.on_path(stand_in.make(tmp_path, fails='error: context "a" does not exist')))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'error: no cluster: context "a" does not exist\n'


def test_status_imports_nothing_slow(tmp_path: Path) -> None:
    code = (
        "import sys; from gpushare.kubectl.main import main; code = main(['status']); "
        f"found = {HEAVY} & sys.modules.keys(); print(sorted(found)); sys.exit(code)"
    ).replace(str(HEAVY), str(set(HEAVY)))
    environment = os.environ | stand_in.on_path(stand_in.make(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["status"], "status"),
        (["--context", "status", "top"], "top"),
        (["--context=status", "top", "-n", "plan"], "top"),
        (["-n", "status", "why", "app"], "why"),
        (["--namespace", "status", "why", "app"], "why"),
        (["--namespace=status", "-nplan", "why", "app"], "why"),
        (["--version"], None),
    ],
)
def test_the_command_is_the_first_word_that_is_no_options_value(arguments: list[str], command: str | None) -> None:
    assert program.command_of(arguments) == command


def test_options_of_kubectl_are_taken_before_and_after_the_command(tmp_path: Path) -> None:
    environment = stand_in.on_path(stand_in.make(tmp_path))
    assert plugin("--context", "a", "events", "--kubeconfig=b", **environment).returncode == 0
    runs = [line for line in stand_in.asked(tmp_path) if line.startswith(("proxy", "config"))]
    assert len(runs) == 2
    assert all("--context=a --kubeconfig=b" in line for line in runs)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-n", "ml", "events"], ["events", "-n", "ml"], ["-nml", "events"], ["--namespace=ml", "events"],
        ["-n", "other", "events", "--namespace", "ml"],
    ],
)  # fmt: skip
def test_a_namespace_is_taken_before_and_after_the_command(tmp_path: Path, arguments: list[str]) -> None:
    environment = stand_in.on_path(stand_in.make(tmp_path, {"GET /api/v1/namespaces/ml": (200, {"metadata": {}})}))
    assert plugin(*arguments, **environment).returncode == 0
    assert any(line.startswith("GET /api/v1/namespaces/ml/events") for line in stand_in.asked(tmp_path))


@pytest.mark.parametrize("command", sorted(program.COMMANDS))
def test_every_command_takes_kubectls_namespace(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(["-n", "ml", command, "--help"])
    assert ended.value.code == 0
    assert "--namespace" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["plan", "/nowhere.yaml"])
    assert "cannot read /nowhere.yaml" in capsys.readouterr().err


def test_a_reader_that_stops_is_no_error(tmp_path: Path) -> None:
    items = [event("Started", "it runs", metadata={"name": f"n{number}"}) for number in range(3000)]
    path = stand_in.on_path(stand_in.make(tmp_path, {"GET /api/v1/events": (200, {"items": items})}))
    command = f"{sys.executable} -m gpushare.kubectl.main events -A -o yaml | head -1"
    done = subprocess.run(command, shell=True, env=os.environ | path, capture_output=True, timeout=60)  # noqa: S602
    assert done.stderr == b""


QUEUED = {
    "metadata": {"name": "job-train-1a2b3", "ownerReferences": [{"name": "train", "uid": "u"}]},
    "spec": {"queueName": "gpus"},
    "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": "1 more needed"}]},
}
MISSING = {"kind": "Status", "reason": "NotFound", "message": "there is no such kind"}


@pytest.mark.parametrize("command", [["why", "job/train"], ["describe", "pod", "train"]])
@pytest.mark.parametrize(
    ("workloads", "code", "says"),
    [
        ((200, {"items": [QUEUED]}), 1, 'Kueue holds it in LocalQueue "gpus": 1 more needed'),
        ((404, MISSING), 2, '"train" not found; there is none'),
        ((403, MISSING | {"reason": "Forbidden"}), 2, '"train" not found; there is none'),
    ],
    ids=["held", "no-kueue", "no-right"],
)
def test_a_job_without_a_pod_is_looked_for_in_kueues_queues(
    tmp_path: Path, command: list[str], workloads: tuple[int, object], code: int, says: str
) -> None:
    path = "GET /apis/kueue.x-k8s.io/v1beta2/namespaces/ml/workloads"
    done = plugin(*command, **stand_in.on_path(stand_in.make(tmp_path, {path: workloads})))
    assert done.returncode == code
    assert says in done.stdout + done.stderr


POD_OF = [
    ("serve", "", ""), ("serve-5d4f7b9c8d-x2k4p", "ReplicaSet", "serve-5d4f7b9c8d"), ("train-x7k2p", "Job", "train"),
    ("night-29384710-x2k4p", "Job", "night-29384710"),
]  # fmt: skip
"""Pods by name, kind and name of their owners; one has the name of a Deployment."""


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("serve", "ml/serve: "),
        ("pod/serve", "ml/serve: "),
        ("deployment/serve", "ml/serve-5d4f7b9c8d-x2k4p: "),
        ("deploy.apps/serve", "ml/serve-5d4f7b9c8d-x2k4p: "),
        ("job/train", "ml/train-x7k2p: "),
        ("trainjob/train", "ml/train-x7k2p: "),
        ("cronjob/night", "ml/night-29384710-x2k4p: "),
        ("sts/serve", 'in namespace ml: sts "serve" not found; there is none'),
        ("deployment/serv", 'in namespace ml: deployment "serv" not found; did you mean "serve"?'),
        ("deployment/train", 'in namespace ml: deployment "train" not found; there are serve'),
    ],
)
def test_what_makes_pods_is_looked_for_by_its_kind_and_named_by_it(tmp_path: Path, asked: str, says: str) -> None:
    pods = [pod(name) for name, _, _ in POD_OF]
    for listed, (_, kind, owner) in zip(pods, POD_OF, strict=True):
        listed["metadata"]["ownerReferences"] = [{"kind": kind, "name": owner, "controller": True}] if kind else []
    answers = {"GET /api/v1/namespaces/ml/pods": (200, {"items": pods})}
    done = plugin("why", asked, **stand_in.on_path(stand_in.make(tmp_path, answers)))
    assert says in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (["inference", "batch"], 'GpuShare "infrence" not found; did you mean "inference"?'),
        (["a", "b"], 'GpuShare "infrence" not found; there are a, b'),
        ([], 'GpuShare "infrence" not found; there is none'),
        (None, 'GpuShare "infrence" not found'),
    ],
)
def test_an_unknown_name_is_an_error_with_a_suggestion(known: list[str] | None, says: str) -> None:
    assert str(unknown("GpuShare", "infrence", known)) == says


def test_a_known_name_is_none() -> None:
    require("GpuShare", "a", ["a"])
    with pytest.raises(WrongInputError):
        require("GpuShare", "b", ["a"])
