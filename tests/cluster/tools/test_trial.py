"""`kubectl gpushare trial` on a real cluster: a Job runs in slots beside itself or another, and nothing of it stays."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_workload.results.comparison import read
from localcluster.kubectl import Object
from tests.cluster.harness import Harness, Tenant, wait_until

PROGRAM = (
    "import json, os, signal, sys, time\n"
    "from gpushare.simulation.client import SimulatedContext\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
    "context = SimulatedContext.create()\n"
    "while True:\n"
    "    print(json.dumps({'rate': context.sms, 'ms': [2.0]}), flush=True)\n"
    "    time.sleep(0.2)\n"
)
FIGURES = ("--rate-json", "rate", "--latency-json", "ms")
OPTIONS = (*FIGURES, "--seconds", "1.5", "--windows", "2", "--warmup", "0", "--repeats", "1")
SECONDS = 240.0
CLIENTS = {
    "perGpu": 2,
    "threads": {"default": 10, "max": 10},
    "memory": {"default": "8Gi"},
    "classes": {"bestEffort": {"threadsBesideProtected": 40}},
}
SERVICE = PROGRAM.replace("context.sms", "1000").replace(
    "[2.0]", "[2.0 if os.environ['GPUSHARE_CLASS'] == 'Protected' else 50.0]"
)
"""Keeps its objective where it is protected alone."""
SEARCH = (*FIGURES, "--slo", "p99=20ms", "--seconds", "1.5", "--warmup", "0", "--repeats", "1", "--share", "tried")


def program(tenant: Tenant) -> Object:
    """A pod for a whole GPU, as a user may have it."""
    pod = tenant.pod("app", "none", "depart")
    container = pod["spec"]["containers"][0]
    container |= {"command": ["python3", "-c", PROGRAM], "args": [], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    return pod


def job(tenant: Tenant, folder: Path) -> Path:
    pod = program(tenant)
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "app"},
        "spec": {"template": {"spec": pod["spec"]}},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(manifest))
    return path


def pod_file(tenant: Tenant, folder: Path, name: str, text: str) -> Path:
    pod = program(tenant)
    pod["spec"]["containers"][0]["command"] = ["python3", "-c", text]
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(pod))
    return path


def other(harness: Harness, tenant: Tenant, folder: Path) -> Path:
    """The file of a Pod of another image, whose container has another name and which is slower."""
    pod = program(tenant)
    pod["metadata"] = {"name": "other", "namespace": "elsewhere"}
    (container,) = pod["spec"]["containers"]
    slower = PROGRAM.replace("context.sms", "10").replace("2.0", "5.0")
    container |= {"name": "second", "image": harness.stack.operator_image, "command": ["python3", "-c", slower]}
    path = folder / "other.yaml"
    path.write_text(json.dumps(pod))
    return path


def start(harness: Harness, tenant: Tenant, file: Path, *options: str, option: str = "-f") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpushare.kubectl.main", "trial", option, str(file), "-n", tenant.name, *options]
    environment = {**os.environ, **harness.stack.environment}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def made(tenant: Tenant) -> list[Object]:
    """The trial's Jobs and pods."""
    return [*tenant.kubectl.items("jobs"), *tenant.kubectl.items("pods")]


@pytest.fixture(scope="module", autouse=True)
def _share(harness: Harness) -> Iterator[None]:
    with harness.share("tried", per_node=1, clients=CLIENTS) as share:
        share.wait_capacity(2)
        yield


def test_a_job_runs_in_slots_beside_itself_as_far_as_there_are_some(harness: Harness, tmp_path: Path) -> None:
    with harness.namespace() as tenant:
        file = job(tenant, tmp_path)
        options = (*OPTIONS, "--share", "tried", "--copies", "2", "4", "--start-timeout", "20", "-o", "json")
        out, err = (process := start(harness, tenant, file, *options)).communicate(timeout=SECONDS)
        assert process.returncode == 0, err
        answer = json.loads(out)
        rows = {tuple(row["copies"]): row for row in answer["rows"]}
        assert rows[(1,)]["rates"][0]["median"] == rows[(2,)]["rates"][0]["median"] / 2 > 1
        assert rows[(2,)]["p99_ms"][0]["median"] == 2.0
        assert (rows[(2,)]["samples"], rows[(2,)]["runs"]) == (2, 1)
        memory = [rows[(copies,)]["memory_mib"] for copies in (1, 2)]
        assert memory[0] == memory[1] > 0, "each copy has a context"
        assert 0 <= rows[(2,)]["busy_percent"]["median"] <= 100
        assert [note for row in rows.values() for note in row["notes"]] == []
        assert rows[(4,)]["ending"] == "no room"
        assert "Insufficient gpushare.dev/tried" in " ".join(answer["stopped"])
        assert answer["verdict"]["answer"] == "untimed"
        assert json.loads(json.dumps(read(out).as_json()["rows"])) == answer["rows"], "compare --read takes it"
        assert made(tenant) == []


def test_a_pair_of_a_job_and_a_pod_runs_beside_each_other(harness: Harness, tmp_path: Path) -> None:
    with harness.namespace() as tenant:
        file, beside = job(tenant, tmp_path), other(harness, tenant, tmp_path)
        options = (*OPTIONS, "--share", "tried", "--beside", str(beside), "-o", "json")
        out, err = (process := start(harness, tenant, file, *options)).communicate(timeout=SECONDS)
        assert process.returncode == 0, err
        answer = json.loads(out)
        assert answer["programs"] == [["job.yaml"], ["other.yaml"]]
        rows = {tuple(row["copies"]): row for row in answer["rows"]}
        assert list(rows) == [(1, 0), (0, 1), (1, 1)]
        first, second, pair = rows.values()
        alone = [first["rates"][0]["median"], second["rates"][1]["median"]]
        assert alone[0] > alone[1] == 10.0
        assert [rate["median"] for rate in pair["rates"]] == alone, "each against itself"
        assert pair["gain"]["median"] == 2.0
        assert [spread["median"] for spread in pair["p99_ms"]] == [2.0, 5.0]
        assert pair["memory_mib"] == first["memory_mib"] == second["memory_mib"] > 0
        assert answer["stopped"] == []
        assert json.loads(json.dumps(read(out).as_json()["rows"])) == answer["rows"], "compare --read takes it"
        assert made(tenant) == []


def test_what_may_run_beside_a_service_is_found_and_admitted(harness: Harness, tmp_path: Path) -> None:
    with harness.namespace() as tenant:
        service, beside = pod_file(tenant, tmp_path, "service", SERVICE), other(harness, tenant, tmp_path)
        process = start(harness, tenant, service, *SEARCH, "--beside", str(beside), "-o", "json", option="--protect")
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, err
        answer = json.loads(out)
        assert [row.get("way") for row in answer["rows"]] == [
            None,
            None,
            {"best_effort": False, "percent": 10},
            {"best_effort": True, "percent": 40},
        ]
        assert (
            "as BestEffort, 40 % of the SMs while the service is active: 2 ms, alone 2 ms"
            in (answer["verdict"]["sentence"])
        )
        share, protected, job_pod = answer["apply"]
        assert share["spec"]["clients"]["classes"]["protected"]["namespaces"] == [tenant.name]
        assert protected["metadata"]["annotations"]["gpushare.dev/class"] == "Protected"
        assert job_pod["metadata"]["annotations"]["gpushare.dev/class"] == "BestEffort"
        for item in answer["apply"]:
            tenant.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(item))
        assert json.loads(json.dumps(read(out).as_json()["rows"])) == answer["rows"], "compare --read takes it"
        assert made(tenant) == []


def test_a_job_that_never_uses_the_gpu_gets_no_verdict(harness: Harness, tmp_path: Path) -> None:
    with harness.namespace() as tenant:
        idle = PROGRAM.replace("SimulatedContext.create()", "None").replace("context.sms", "1")
        file = pod_file(tenant, tmp_path, "idle", idle)
        options = (*FIGURES, "--seconds", "5", "--repeats", "1", "--share", "tried", "--copies", "2", "-o", "json")
        out, err = start(harness, tenant, file, *options).communicate(timeout=SECONDS)
        answer = json.loads(out)
        assert answer["verdict"]["sentence"].startswith("No verdict: one copy alone never used the GPU"), err
        assert [row["copies"] for row in answer["rows"]] == [[1]]


@pytest.mark.parametrize("pair", [False, True], ids=["copies", "a pair"])
def test_a_trial_that_is_ended_deletes_what_it_made(harness: Harness, tmp_path: Path, pair: bool) -> None:
    with harness.namespace() as tenant:
        file = job(tenant, tmp_path)
        # A pair has two Jobs to delete: it is ended once both have a pod.
        options = ("--beside", str(other(harness, tenant, tmp_path))) if pair else ("--seconds", "300")
        process = start(harness, tenant, file, *OPTIONS, "--repeats", "9", *options, "--share", "tried")
        pods = 2 if pair else 1
        wait_until("its copies run", lambda: len(tenant.kubectl.items("pods")) == pods, 120)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 130, err
        assert made(tenant) == []
