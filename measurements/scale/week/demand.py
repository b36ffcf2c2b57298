"""A week of pods for a cluster of any size, drawn from the trace. Pure; the same seed gives the same week.

The trace is small: its pods had 36 GPUs at a time. So the week is made of many copies of it. Each copy is seven days of
the trace's last 34, begun at another day at the same hour (so that nights stay nights), and moved by up to half an
hour. Copies are added until the pods of the week, if each began at once, would use `load` of the cluster's GPU time.
Pods that ran when a copy's week began are there from the start, with what was left of their run.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from measurements.scale.week.trace import Ask, Run, Trace

DAY = 86400.0
WEEK = 7 * DAY
WINDOW_DAYS = 34
"""The trace has one pod in a few days before, and hundreds a day since."""
MOVED = 1800.0


@dataclass(frozen=True, slots=True)
class Job:
    """`arrival`: seconds of the week, negative where the pod ran before; `seconds`: how long it runs once placed."""

    ask: Ask
    arrival: float
    seconds: float

    @property
    def begins(self) -> float:
        """Seconds of the week, where it does not wait."""
        return max(0.0, self.arrival)

    @property
    def gpu_seconds(self) -> float:
        """GPU seconds in the week, where the pod does not wait."""
        return self.ask.gpu * min(self.seconds, WEEK - self.begins)


@dataclass(frozen=True, slots=True)
class Week:
    """`jobs`: by arrival."""

    jobs: tuple[Job, ...]
    copies: int
    asked: float
    """GPUs, as a mean over the week, if each pod began at once."""


def week(trace: Trace, gpus: int, load: float, seed: int) -> Week:
    """`load`: part of the GPU time. ValueError where the trace is too short."""
    first = trace.end - WINDOW_DAYS * DAY
    if trace.end - WEEK < min(run.started for run in trace.runs):
        raise ValueError("the trace is shorter than a week")
    chance = random.Random(seed)
    jobs: list[Job] = []
    wanted, copies, asked = gpus * load, 0, 0.0
    while asked < wanted:
        begin = first + chance.randrange(WINDOW_DAYS - 7) * DAY + chance.uniform(0, MOVED)
        copy = _copy(trace.runs, begin)
        if not copy and copies > WINDOW_DAYS:
            raise ValueError("the trace's last weeks are empty")
        jobs.extend(copy)
        asked += sum(job.gpu_seconds for job in copy) / WEEK
        copies += 1
    return Week(tuple(sorted(jobs, key=lambda job: job.arrival)), copies, asked)


def _copy(runs: Sequence[Run], begin: float) -> list[Job]:
    """A copy of the pod. Where it ran before the week, the arrival keeps the order, and `seconds` is what is left."""
    jobs = []
    for run in runs:
        if run.ended <= begin or run.created >= begin + WEEK:
            continue
        if run.created >= begin:
            jobs.append(Job(run.ask, run.created - begin, run.ended - run.started))
        else:
            jobs.append(Job(run.ask, run.created - begin, run.ended - max(begin, run.started)))
    return jobs
