"""What is told of one simulated week, and of several with different seeds. Pure."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from measurements.scale.week.demand import Job
from measurements.scale.week.simulate import Outcome, Sample, Wait
from measurements.scale.week.trace import Ask

HOUR = 3600.0
KINDS = ("parts", "single", "several")


def kind_of(ask: Ask) -> str:
    """The kind of a pod: whether it asks for a part of a GPU, for one, or for several."""
    if ask.gpus > 1:
        return "several"
    return "parts" if ask.milli < 1000 else "single"


def figures(outcome: Outcome, gpus: int) -> dict[str, float]:
    """Percent of the cluster's GPUs as means of hourly samples, except `gpusInUseAtMost`; percent of pods that came in
    the week. `unusable` is a part of `free`, and `elsewhere`, `scattered` and `withoutCpu` are its parts. A kind of
    which no pod came has no figures.
    """

    def mean(samples: Sequence[Sample], name: str) -> float:
        return fmean(100 * getattr(sample, name) / gpus for sample in samples)

    samples = outcome.samples
    values = {
        "asked": mean(samples, "granted"),
        "rounded": mean(samples, "rounded"),
        "gpusInUse": mean(samples, "in_use"),
        "gpusInUseAtMost": max(100 * sample.in_use / gpus for sample in samples),
        "free": mean(samples, "free"),
        "unusable": mean(samples, "unusable"),
        "elsewhere": mean(samples, "elsewhere"),
        "scattered": mean(samples, "scattered"),
        "withoutCpu": mean(samples, "without_cpu"),
        "mostPodsOnANode": float(outcome.most_pods),
    }
    by_kind: dict[str, list[Wait]] = {"all": list(outcome.waits)}
    for wait in outcome.waits:
        by_kind.setdefault(kind_of(wait.ask), []).append(wait)
    for kind, waits in sorted(by_kind.items()):
        if waits:
            values[f"pods.{kind}"] = float(len(waits))
            values[f"waited.{kind}"] = 100 * fmean(wait.seconds > 0 for wait in waits)
            values[f"waitedAnHour.{kind}"] = 100 * fmean(wait.seconds >= HOUR for wait in waits)
            values[f"neverPlaced.{kind}"] = 100 * fmean(not wait.placed for wait in waits)
            values[f"meanWaitMinutes.{kind}"] = fmean(wait.seconds for wait in waits) / 60
    return values


def mix(jobs: Sequence[Job]) -> dict[str, dict[str, float]]:
    """The mix by kind: percent of the pods that come in the week, and of the GPU time that all ask for."""
    came = [job for job in jobs if job.arrival >= 0]
    whole = sum(job.gpu_seconds for job in jobs)
    return {
        kind: {
            "percentOfPods": _short(100 * fmean(kind_of(job.ask) == kind for job in came)),
            "percentOfGpuTime": _short(100 * sum(job.gpu_seconds for job in jobs if kind_of(job.ask) == kind) / whole),
        }
        for kind in KINDS
    }


def over_seeds(weeks: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """[mean, least, most] of each figure, rounded to what is told."""
    return {
        name: [_short(value) for value in (fmean(values), min(values), max(values))]
        for name in weeks[0]
        if len(values := [figures_of_week[name] for figures_of_week in weeks if name in figures_of_week]) == len(weeks)
    }


def _short(value: float) -> float:
    return round(value, 3 if abs(value) < 1 else 2 if abs(value) < 100 else 1)
