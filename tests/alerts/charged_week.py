"""A week of two nodes, as their agents charge it and Prometheus scrapes it, and what is true of it.

The agents' part is the product's own `charges`; what is true is added up here, from the parts alone.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gpushare.agent.observe.charges import IDLE, Account, ChargeLog, SharedGpu, charges
from gpushare.grant.model import Grant

DAY = 86400
WEEK = 7 * DAY
SCRAPE = 30
MEMORY_MIB = 140_000
PRODUCT = "NVIDIA H200"
SEES_AFTER = 7
"""Seconds until an agent sees a change, at most: a reading of the kubelet, and an observation."""


@dataclass(frozen=True)
class Held:
    """A container that holds a part of a GPU. `grant`: None: it has the GPU whole. `part`: what that is of the GPU."""

    begin: float
    end: float
    namespace: str
    uuid: str
    part: float
    grant: Grant | None


@dataclass(frozen=True)
class Life:
    """An agent of a node, and when it runs. `there`: from when its node has the GPUs."""

    node: str
    pod: str
    begin: float
    end: float
    there: float


GPUS = {
    "n1": (SharedGpu("a", "GPU-0", PRODUCT, MEMORY_MIB), SharedGpu("a", "GPU-1", PRODUCT, MEMORY_MIB)),
    "n2": (SharedGpu("whole", "GPU-2", PRODUCT, MEMORY_MIB), SharedGpu("claims", "GPU-3", PRODUCT, MEMORY_MIB)),
}
REBOOT = (4 * DAY + 1000.0, 4 * DAY + 1900.0)
"""The second node is away."""
LIVES = (
    Life("n1", "agent-1", 0, 2 * DAY + 7, 0),
    Life("n1", "agent-2", 2 * DAY + 52, 5 * DAY, 0),
    Life("n1", "agent-3", 5 * DAY + 21, WEEK, 0),
    Life("n2", "agent-4", 0, REBOOT[0], 0),
    Life("n2", "agent-5", REBOOT[1], WEEK, REBOOT[1]),
)
"""The first node's agent is restarted twice: it is away for 45 and for 21 s."""


def quarter(share: str = "a", **more: Any) -> Grant:
    return Grant(share, 25, 14_000, 1, **more)


def held() -> list[Held]:
    """`lender` and `borrower` have the same reservation, of which one lends and the other borrows more. `waits` holds
    its slot for a day before its container starts. `ci` has jobs shorter than a scrape, `once` a single one. Three
    clients of `crowd` have all threads each. `mixed` comes and goes."""
    chance = random.Random(7)
    parts = [
        Held(0, WEEK, "lender", "GPU-0", 0.25, quarter()),
        Held(3600, WEEK - 50_000, "borrower", "GPU-0", 0.25, quarter(burst_mib=100_000)),
        Held(DAY, 2.5 * DAY, "waits", "GPU-0", 0.25, quarter()),
        Held(3 * DAY + 11, 3 * DAY + 31, "once", "GPU-0", 0.25, quarter()),
        Held(DAY / 2, 3.5 * DAY, "team", "GPU-2", 1.0, None),
        Held(4.5 * DAY, 6 * DAY, "other", "GPU-2", 1.0, None),
        Held(1000, REBOOT[0], "claims", "GPU-3", 0.6, Grant("claims", 10, 84_000, 1)),
        Held(REBOOT[1] + 30, WEEK, "claims", "GPU-3", 0.6, Grant("claims", 10, 84_000, 1)),
    ]
    for number in range(3):
        begin = (1 + number) * DAY + 5
        parts.append(Held(begin, begin + 2 * DAY, f"crowd-{number}", "GPU-1", 1.0, Grant("a", 100, 14_000, 1)))
    parts += [Held(at, at + 20, "ci", "GPU-0", 0.25, quarter()) for at in range(200, WEEK - 400, 290)]
    at = 0.0
    while (at := at + chance.expovariate(1 / 900)) < WEEK - 4000:
        parts.append(Held(at, at + chance.uniform(5, 3600), "mixed", "GPU-3", 0.1, Grant("claims", 10, 100, 1)))
    return parts


def true_hours(parts: Sequence[Held]) -> dict[str, float]:
    """GPU-hours of each namespace and of IDLE, to the second."""
    hours: dict[str, float] = defaultdict(float)
    for uuid in (gpu.uuid for gpus in GPUS.values() for gpu in gpus):
        here = [part for part in parts if part.uuid == uuid]
        away = REBOOT if uuid in ("GPU-2", "GPU-3") else (WEEK, WEEK)
        moments = sorted({0.0, float(WEEK), *away, *(at for part in here for at in (part.begin, part.end))})
        for begin, end in pairwise(moments):
            if away[0] <= begin < away[1]:
                continue
            now = [part for part in here if part.begin <= begin < part.end]
            together = sum(part.part for part in now)
            for part in now:
                hours[part.namespace] += part.part / max(1.0, together) * (end - begin) / 3600
            hours[IDLE] += max(0.0, 1 - together) * (end - begin) / 3600
    return dict(hours)


def scraped(parts: Sequence[Held], begin: int, prices: Mapping[str, float]) -> Iterator[str]:
    """Lines of OpenMetrics: the series of all agents, and OpenCost's `prices` of a GPU-hour by node. `begin`: of the
    week, in Unix seconds."""
    yield "# TYPE node_gpu_hourly_cost gauge"
    for node, price in prices.items():
        for at in range(0, WEEK + 1, SCRAPE):
            yield f'node_gpu_hourly_cost{{node="{node}",instance="opencost"}} {price} {begin + at}'
    yield "# TYPE gpushare_charged_gpu_seconds counter"
    for life in LIVES:
        taken = dict(_scrapes(life, parts))
        for account in sorted({account for totals in taken.values() for account in totals}, key=str):
            labels = {
                "namespace": account.namespace,
                "share": account.share,
                "uuid": account.uuid,
                "product": account.product,
                "node": life.node,
                "pod": life.pod,
            }
            text = ",".join(f'{name}="{value}"' for name, value in labels.items())
            for at, totals in taken.items():
                if account in totals:
                    yield f"gpushare_charged_gpu_seconds_total{{{text}}} {totals[account]:.3f} {begin + at}"
    yield "# EOF"


def _scrapes(life: Life, parts: Sequence[Held]) -> Iterator[tuple[int, Mapping[Account, float]]]:
    """What the agent shows at each scrape, by its second of the week."""
    chance, log, gpus = random.Random(life.pod), ChargeLog(), GPUS[life.node]
    share = {gpu.uuid: gpu.share for gpu in gpus}
    mine = [part for part in parts if part.uuid in share]
    moments = {at for part in mine for at in (part.begin, part.end) if life.begin < at < life.end}
    turns = sorted({life.begin, *(at + chance.uniform(0, SEES_AFTER) for at in moments)})
    turn = 0
    for at in range(math.ceil(life.begin / SCRAPE) * SCRAPE, int(min(life.end, WEEK)) + 1, SCRAPE):
        while turn < len(turns) and turns[turn] <= at:
            seen = [part for part in mine if part.begin <= turns[turn] < part.end]
            granted = [
                ((part.namespace, str(number), "app"), (share[part.uuid], part.uuid), part.grant)
                for number, part in enumerate(seen)
                if part.grant is not None
            ]
            whole = {
                (part.namespace, str(number), "app"): [(share[part.uuid], part.uuid)]
                for number, part in enumerate(seen)
                if part.grant is None
            }
            log.update(charges(gpus, granted, whole), turns[turn])
            turn += 1
        yield at, log.totals(at)
