"""What Prometheus is asked about one share, and the history that its answers make. Pure.

Prometheus reduces each series to one figure, so that an answer has a line for each GPU or container and not for each
sample. Labels that Prometheus adds (`instance`, the agent's own pod) change with each restart of an agent, so every
query takes the maximum over them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpushare.api.gpunode import GpuNode, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.api.quantity import MIB
from gpushare.kubectl.recommend.prometheus import PrometheusSeries
from gpushare.kubectl.rules.recommend.history import (
    ActivityPast,
    ContainerPast,
    FaultSeen,
    GpuPast,
    HistorySource,
    Observed,
    ShareHistory,
    workload_of,
)

LEAST_STEP = 300
"""Seconds: more than a scrape's interval, whatever it is."""
MOST_STEPS = 2016
"""The steps of a window: seven days in steps of five minutes."""
SCRAPES = 120
"""Seconds in which there is a scrape, or two."""
CONTAINER = ("namespace", "pod", "container", "uuid")

Answers = Mapping[str, Sequence[PrometheusSeries]]


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A GPU of the cluster now. `share`: whose it is; empty: nobody's."""

    memory_mib: int
    client_ceiling: int
    share: str


def known_gpus(nodes: Sequence[GpuNode]) -> dict[Uuid, KnownGpu]:
    return {
        gpu.uuid: KnownGpu(gpu.memory_mib, node.status.client_ceiling, owners.get(gpu.uuid, ""))
        for node in nodes
        for owners in [{assignment.uuid: assignment.share for assignment in node.spec.assignments or ()}]
        for gpu in node.status.gpus
    }


def step_of(window: float) -> int:
    """Seconds between two samples of a window of so many seconds."""
    return max(LEAST_STEP, 60 * math.ceil(window / MOST_STEPS / 60))


def questions(share: GpuShare, window: int) -> dict[str, str]:
    """Instant queries by name. `window`: seconds before the time that they are asked about."""
    step = step_of(window)
    of, now = f'{{share="{share.name}"}}', share.clients.per_gpu
    default = share.memory_default_mib * MIB
    each = f"max by ({', '.join(CONTAINER)})"

    def steps(function: str, expression: str) -> str:
        return f"{function}(({expression})[{window}s:{step}s])"

    # Only while the share had its present perGpu: what was held of eight slots says nothing of four.
    present = f"max by (uuid) (gpushare_slots{of}) == {now}"
    held = f"max by (uuid) (gpushare_slots_held{of}) and ({present})"
    most_held = f"max by (uuid) (max_over_time(gpushare_slots_held{of}[{step}s])) and ({present})"
    full = f"({held}) >= {now}"
    used = f"gpushare_container_memory_used_bytes{of}"
    granted = f"gpushare_container_memory_granted_bytes{of}"
    active = f"gpushare_container_active_seconds_total{of}"
    threads = f"{each} (max_over_time(gpushare_container_threads_granted_ratio{of}[{step}s]))"
    processes = f"{each} (max_over_time(gpushare_container_processes{of}[{step}s]))"
    having_default = f"count({each} ({granted}) == {default})"
    return {
        "held_samples": steps("count_over_time", held),
        "held_most": steps("max_over_time", most_held),
        "gpu_full": steps("count_over_time", full),
        "busy": f"quantile_over_time(0.95, (max by (uuid) (gpushare_gpu_utilization_ratio) and on (uuid) ({full}))"
        f"[{window}s:{step}s])",
        "memory_together": steps("max_over_time", f"sum by (uuid) ({each} ({used}))"),
        "threads_together": steps("max_over_time", f"sum by (uuid) ({threads} * {processes})"),
        "samples": steps("count_over_time", f"count({held})"),
        "since": steps("min_over_time", f"timestamp(count({held}))"),
        "full": steps("count_over_time", f"min({held}) >= {now}"),
        "held_together": steps("max_over_time", f"sum({held})"),
        "default_samples": steps("count_over_time", having_default),
        "default_since": steps("min_over_time", f"timestamp({having_default})"),
        "used_most": f"{each} (max_over_time({used}[{window}s]))",
        "used_p95": f"{each} (quantile_over_time(0.95, {used}[{window}s]))",
        "used_samples": steps("count_over_time", f"{each} ({used})"),
        "granted": f"{each} (max_over_time({granted}[{window}s]))",
        "class": f"max by ({', '.join((*CONTAINER, 'class'))}) ({active})",
        "active": f"sum by ({', '.join(CONTAINER)}) (increase({active}[{window}s]))",
        "launched": f"sum by ({', '.join(CONTAINER)}) (increase(gpushare_container_launches_total{of}[{window}s]))",
        "active_samples": steps("count_over_time", f"{each} ({active})"),
    }


def fault_question(share: GpuShare, step: int) -> str:
    """Over the steps: a point for each container with a process on a GPU in a step with a fault of it.

    A step's maximum is compared with that of the step before, since an increase between the two is in neither. The
    processes of a scrape or two before the step count, because a fault ends them.
    """
    of = f'{{share="{share.name}"}}'
    there = f"max by ({', '.join(CONTAINER)}) (max_over_time(gpushare_container_processes{of}[{step + SCRAPES}s])) > 0"
    faults = f"max by (uuid) (max_over_time(gpushare_gpu_faults_total{of}[{step}s]"
    return f"{there} and on (uuid) ({faults})) > {faults} offset {step}s)))"


def history_of(
    share: GpuShare,
    answers: Answers,
    faults: Sequence[PrometheusSeries],
    gpus: Mapping[Uuid, KnownGpu],
    end: float,
    window: int,
) -> ShareHistory:
    """`gpus`: those of the cluster; series of other GPUs are another cluster's, and left out."""
    by_gpu = {name: _by(("uuid",), series) for name, series in answers.items()}
    return ShareHistory(
        share=share,
        source=HistorySource.PROMETHEUS,
        begin=end - window,
        end=end,
        step=step_of(window),
        clients=_observed(answers["samples"], answers["since"]),
        full=int(_single(answers["full"])),
        held_together=int(_single(answers["held_together"])),
        defaults=_observed(answers["default_samples"], answers["default_since"]),
        gpus=[
            GpuPast(
                uuid=uuid,
                memory_mib=gpu.memory_mib,
                client_ceiling=gpu.client_ceiling,
                samples=int(by_gpu["held_samples"].get((uuid,), 0)),
                held_most=min(share.clients.per_gpu, int(by_gpu["held_most"].get((uuid,), 0))),
                full=int(by_gpu["gpu_full"].get((uuid,), 0)),
                busy_when_full=by_gpu["busy"].get((uuid,)),
                memory_most=_mib(by_gpu["memory_together"].get((uuid,))),
                threads_most=by_gpu["threads_together"].get((uuid,)),
            )
            for uuid, gpu in gpus.items()
            if gpu.share == share.name
        ],
        containers=_containers(answers, gpus, step_of(window)),
        faults=_faults(faults, gpus),
    )


def _containers(answers: Answers, gpus: Mapping[Uuid, KnownGpu], step: int) -> list[ContainerPast]:
    p95, samples, granted = (_by(CONTAINER, answers[name]) for name in ("used_p95", "used_samples", "granted"))
    activity = _activity(answers, step)
    return [
        ContainerPast(
            *(where[0], where[1], where[2], where[3]),
            samples=int(samples.get(where, 0)),
            memory_most=_mib(most) or 0,
            memory_p95=_mib(p95.get(where)) or 0,
            granted=_mib(granted.get(where)),
            activity=activity.get(where),
        )
        for where, most in _by(CONTAINER, answers["used_most"]).items()
        if where[-1] in gpus
    ]


def _activity(answers: Answers, step: int) -> dict[tuple[str, ...], ActivityPast]:
    """Of the containers with a class that are there now."""
    active, launched, samples = (_by(CONTAINER, answers[name]) for name in ("active", "launched", "active_samples"))
    activity: dict[tuple[str, ...], ActivityPast] = {}
    for line in answers["class"]:
        where = tuple(line.labels.get(label, "") for label in CONTAINER)
        if count := int(samples.get(where, 0)):
            part = min(1.0, active.get(where, 0.0) / (count * step))
            launches = math.ceil(launched.get(where, 0.0))
            activity[where] = ActivityPast(line.labels.get("class", ""), part, launches, count)
    return activity


def _faults(series: Sequence[PrometheusSeries], gpus: Mapping[Uuid, KnownGpu]) -> list[FaultSeen]:
    present: dict[tuple[str, float], set[str]] = {}
    for line in series:
        uuid = line.labels.get("uuid", "")
        workload = workload_of(line.labels.get("namespace", ""), line.labels.get("pod", ""))
        for at, _ in line.points if uuid in gpus else ():
            present.setdefault((uuid, at), set()).add(workload)
    return [FaultSeen(uuid, at, frozenset(workloads)) for (uuid, at), workloads in sorted(present.items())]


def _by(labels: Sequence[str], series: Sequence[PrometheusSeries]) -> dict[tuple[str, ...], float]:
    return {tuple(line.labels.get(label, "") for label in labels): line.points[-1][1] for line in series}


def _single(series: Sequence[PrometheusSeries]) -> float:
    return series[0].points[-1][1] if series else 0.0


def _observed(samples: Sequence[PrometheusSeries], since: Sequence[PrometheusSeries]) -> Observed | None:
    return Observed(int(_single(samples)), _single(since)) if samples and since else None


def _mib(value: float | None) -> int | None:
    """Whole MiB, rounded up: a figure that a grant follows from."""
    return None if value is None else math.ceil(value / MIB)
