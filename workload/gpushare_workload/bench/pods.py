"""One benchmark run by several pods: each runs its own clients at moments that all pods can compute. Pure.

The pods of a Job cannot reach each other, so a barrier is a time: the first run begins at the common start, every
further run so much later that all pods are ready. `report` combines their files.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from gpushare_workload.bench.plan import BenchPlan
from gpushare_workload.results.document import Group

INDEX = "JOB_COMPLETION_INDEX"
"""The variable that Kubernetes sets in the pods of an indexed Job."""
PREPARE_SECONDS = 5.0
"""Time between two runs of a pass, to check the results and to prepare the next load."""
RENEW_SECONDS = 20.0
"""Time between two repeats, to end the clients and to start new ones."""


@dataclass(frozen=True, slots=True)
class Pods:
    """`start_at`: the common start, in seconds since 1970."""

    group: Group
    start_at: float


def pods_of(
    count: int, index: int | None, start_at: float | None, plan: BenchPlan, environment: Mapping[str, str] = os.environ
) -> Pods | None:
    """The pods of the options; None for a single pod. Raises ValueError naming what several pods need."""
    if count == 1:
        if start_at is not None:
            raise ValueError("--start-at: is the common start of several pods; say how many there are with --pods")
        return None
    if count < 1:
        raise ValueError(f"--pods {count}: at least 1")
    if index is None:
        index = _index(environment.get(INDEX, ""))
    if not 0 <= index < count:
        raise ValueError(f"--pod {index}: pods count from 0, and there are {count}")
    if start_at is None:
        raise ValueError("--pods: several pods begin together; give the time with --start-at")
    if len(plan.modes) != 1 or len(plan.clients) != 1:
        raise ValueError("--pods: all pods share the GPU in one mode, with one number of clients each: name both")
    return Pods(Group(f"{count} pods from {start_at:.0f}", index, count), start_at)


def begins(pods: Pods, plan: BenchPlan, repeat: int, number: int) -> float:
    """The start of run `number` of a repeat's pass, in seconds since 1970."""
    return pods.start_at + repeat * (_pass_seconds(plan) + RENEW_SECONDS) + number * _run_seconds(plan)


def duration(plan: BenchPlan) -> float:
    """Seconds from the common start to the end of the last run."""
    return plan.repeats * _pass_seconds(plan) + (plan.repeats - 1) * RENEW_SECONDS


def _run_seconds(plan: BenchPlan) -> float:
    return PREPARE_SECONDS + plan.warmup + plan.window


def _pass_seconds(plan: BenchPlan) -> float:
    return len(plan.loads) * _run_seconds(plan)


def _index(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"--pod: which pod is this? Give its number, or run an indexed Job, which sets {INDEX}")
    return int(text)
