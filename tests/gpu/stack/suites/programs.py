"""Real programs as pods of a share, by `kubectl gpushare trial`: one copy in a slot, then several beside each other.

The programs are those of workload/examples/frameworks, with the machine's own PyTorch and JAX. Their figures without
Kubernetes, in time slices and under a bare MPS daemon, are tests/gpu/compare.py's.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from localcluster.kubectl import Object
from tests.cluster.harness import Harness, Tenant
from tests.gpu.stack.suite import Findings
from tests.gpu.stack.suites import parts

SHARE, COPIES = "programs", 4
MEMORY_PART = 0.22
"""Of the GPU, for each copy."""
PROGRAMS = {
    "resnet-infer": ("resnet.py",),
    "yolos": ("yolos.py",),
    "bert": ("bert.py",),
    "resnet-train": ("resnet.py", "--train", "--batch", "32"),
    "decode-medium": ("decode.py", "--size", "medium"),
    "jax-train": ("jax_train.py",),
    "kmeans": ("kmeans.py",),
    "gpt-medium": ("gpt.py", "--size", "medium"),
}
"""The most telling first: a run that is cut off keeps what it has."""
TIMES = ("--seconds", "4", "--warmup", "0.6", "--repeats", "1", "--start-timeout", "60")
FIGURES = ("--rate-json", "rate", "--latency-json", "latency_ms")
TRIAL_SECONDS = 150
LAST_SECONDS = 100
"""No trial is begun in the last so many of the suite's time."""


def measure(harness: Harness, findings: Findings) -> None:
    end = time.monotonic() + findings.seconds - LAST_SECONDS
    memory = f"{int(MEMORY_PART * findings.truth['memory_mib'])}Mi"
    findings.figures |= {"copies": COPIES, "memory": memory, "programs": {}}
    programs: dict[str, tuple[str, ...]] = {"stand-in": (), "again": ()} if findings.simulated else PROGRAMS
    threads = {"default": 100, "max": 100}
    with (
        harness.share(SHARE, per_node=1, per_gpu=COPIES, memory={"default": memory}, threads=threads) as share,
        harness.namespace("programs", enforce="privileged") as tenant,
    ):
        share.wait_capacity(COPIES)
        for name, program in programs.items():
            if time.monotonic() > end:
                break
            with findings.phase(name):
                findings.figures["programs"][name] = answer = _trial(harness, tenant, program)
                findings.expect("each program runs alone and beside its copies", _all_measured(answer))
        findings.expect("no pod of a trial is left", not tenant.pods())


def _trial(harness: Harness, tenant: Tenant, program: tuple[str, ...]) -> dict[str, Any]:
    """What the command says as JSON, of a program that does not work too. RuntimeError: there was no trial."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(_job(tenant, program)))
        command = [sys.executable, "-m", "gpushare.cli.kubectl.main", "trial", "-f", str(file), "-n", tenant.name]
        command += ["--share", SHARE, "--copies", str(COPIES), *FIGURES, *TIMES, "-o", "json"]
        environment = {**os.environ, **harness.stack.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TRIAL_SECONDS)
    if not done.stdout:
        raise RuntimeError(done.stderr[-2000:])
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _job(tenant: Tenant, program: tuple[str, ...]) -> Object:
    """A Job for a whole GPU, as a user may have it. Without a program: a stand-in on a simulated GPU."""
    pod = tenant.pod("program", "none", "depart")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    parts.run_program(pod, program)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "program"},
        "spec": {"template": {"spec": pod["spec"]}},
    }


def _all_measured(answer: dict[str, Any]) -> bool:
    endings = {tuple(row["copies"]): row["ending"] for row in answer["rows"]}
    return endings.get((1,)) == endings.get((COPIES,)) == "measured"
