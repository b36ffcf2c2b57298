"""Real programs as pods of a share, by `kubectl gpushare trial`: one copy in a slot, then several beside each other.

The programs are those of workload/examples/frameworks, with the machine's own PyTorch and JAX. Their figures without
Kubernetes, in time slices and under a bare MPS daemon, are measurements/gpu/programs/compare.py's.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpushare.kubectl.trial.runner import GONE_SECONDS
from localcluster.kubectl import Object
from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from tests.cluster.harness import Harness, Tenant

SHARE, SLOTS = "programs", 8


@dataclass(frozen=True)
class Program:
    """`arguments`: its file and its own. `copies`: as many beside each other, one number after the other; all of it
    `repeats` times. `cpu`: what each pod requests; empty: none, so that pods which request some go before it.
    """

    arguments: tuple[str, ...] = ()
    copies: tuple[int, ...] = (2, 4, 7, 8)
    repeats: int = 1
    cpu: str = ""


PROGRAMS = {
    "yolos": Program(("yolos.py",)),
    "resnet-infer": Program(("resnet.py",)),
    "decode-medium": Program(("decode.py", "--size", "medium")),
    "resnet-train": Program(("resnet.py", "--train", "--batch", "32")),
    "bert": Program(("bert.py",)),
    "jax-train": Program(("jax_train.py",)),
    "kmeans": Program(("kmeans.py",)),
    "preprocess": Program(("preprocess.py",)),
    "decode-1.3b": Program(("decode.py", "--size", "1.3b")),
    "gpt-medium": Program(("gpt.py", "--size", "medium")),
    "gpt-1.3b": Program(("gpt.py", "--size", "1.3b"), copies=(2, 4)),
    "bert-4": Program(("bert.py",), copies=(4,), repeats=3),
    "bert-4-cpu": Program(("bert.py",), copies=(4,), repeats=3, cpu="2"),
}
"""The most telling first: a run that is cut off keeps what it has, and the next one goes on."""
STAND_INS = {"stand-in": Program(copies=(2, 4)), "again": Program(copies=(4,), repeats=2, cpu="100m")}
TIMES = ("--seconds", "2", "--windows", "2", "--warmup", "0.6", "--start-timeout", "60")
"""Options with the same times as measurements/gpu/programs/compare.py."""
FIGURES = ("--rate-json", "rate", "--latency-json", "latency_ms")
TRIAL_SECONDS = 300
"""The longest trial of one program."""
END_SECONDS = 2 * GONE_SECONDS + 10
"""The longest time until a trial that is interrupted has deleted its pods."""
CLEAN_UP_SECONDS = 30
"""What that takes where the node is well, and then the share's deletion."""


def measure(harness: Harness, findings: Findings) -> None:
    """A program that an earlier run on such a GPU has measured is left out."""
    last = time.monotonic() + findings.seconds - TRIAL_SECONDS - CLEAN_UP_SECONDS
    memory = f"{parts.slot_mib(findings.truth['memory_mib'], SLOTS)}Mi"
    programs = STAND_INS if findings.simulated else PROGRAMS
    answers = {name: answer for name, answer in findings.earlier.get("programs", {}).items() if name in programs}
    findings.figures["programs"] = answers
    threads = {"default": 100, "max": 100}
    with (
        harness.share(SHARE, per_node=1, per_gpu=SLOTS, memory={"default": memory}, threads=threads) as share,
        harness.namespace("programs", enforce="privileged") as tenant,
    ):
        share.wait_capacity(SLOTS)
        gpu = parts.gpu_of(harness, SHARE)
        for name, program in programs.items():
            if name in answers and measured(program, answers[name]):
                continue
            if time.monotonic() > last:
                break
            with findings.phase(name):
                answers[name] = {
                    "date": datetime.now(UTC).isoformat(timespec="seconds"),
                    "gpu": gpu,
                    "cpus": os.cpu_count(),
                    "memory_of_a_slot": memory,
                    **({"cpu_of_a_pod": program.cpu} if program.cpu else {}),
                    **_trial(harness, tenant, program),
                }
        findings.expect(
            "each program runs alone and beside its copies",
            all(measured(program, answers.get(name, {})) for name, program in programs.items()),
        )
        findings.expect("no pod of a trial is left", not tenant.pods())


def _trial(harness: Harness, tenant: Tenant, program: Program) -> dict[str, Any]:
    """What the command says as JSON, of a program that does not work too. RuntimeError: there was no trial."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(_job(tenant, program)))
        command = [sys.executable, "-m", "gpushare.kubectl.main", "trial", "-f", str(file), "-n", tenant.name]
        command += ["--share", SHARE, "--copies", *map(str, program.copies), "--repeats", str(program.repeats)]
        command += [*FIGURES, *TIMES, "-o", "json"]
        environment = {**os.environ, **harness.stack.environment}
        pipe = subprocess.PIPE
        printed, errors = _ended(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True))
    if not printed:
        raise RuntimeError(errors)
    answer: dict[str, Any] = json.loads(printed)
    return answer


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it printed, and the last of its errors. One that takes too long is interrupted, as by a user, so that its
    pods are gone. None is left running.
    """
    late = ""
    try:
        printed, errors = process.communicate(timeout=TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        late = f"took longer than {TRIAL_SECONDS} s: "
        process.terminate()
        printed, errors = process.communicate(timeout=END_SECONDS)
    finally:
        process.kill()
        process.wait()
    return printed, late + errors[-2000:]


def _job(tenant: Tenant, program: Program) -> Object:
    """A Job for a whole GPU, as a user may have it. Without arguments: a stand-in on a simulated GPU."""
    pod = tenant.pod("program", "none", "depart")
    requests = {"cpu": program.cpu} if program.cpu else {}
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}, "requests": requests}
    parts.run_program(pod, program.arguments)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "program"},
        "spec": {"template": {"spec": pod["spec"]}},
    }


def measured(program: Program, answer: Mapping[str, Any]) -> bool:
    """Tells whether a trial with just these copies, repeats and request gave figures. It leaves out copies that
    bring no more than fewer.
    """
    plan = answer.get("plan", {})
    did = (tuple(plan.get("copies", ())), plan.get("repeats"), answer.get("cpu_of_a_pod", ""))
    if did != (program.copies, program.repeats, program.cpu):
        return False
    return len(answer["rows"]) > 1 and all(row["ending"] == "measured" for row in answer["rows"])
