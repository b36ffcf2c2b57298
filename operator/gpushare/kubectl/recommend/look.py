"""Looks at what all agents serve, again and again for a short time, through the API server's pod proxy."""

import time
from collections.abc import Callable, Mapping, Sequence

from gpushare.api.gpunode import Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.kube.resources import PODS, KubeError
from gpushare.kubectl.cluster import Cluster
from gpushare.kubectl.commands.top import AGENTS, LOOK, metrics_of
from gpushare.kubectl.failures import UnreachableError
from gpushare.kubectl.recommend.queries import KnownGpu
from gpushare.kubectl.recommend.watch import Glance, ShareWatch, glance_of
from gpushare.kubectl.rules.recommend.history import ShareHistory

GLANCE_SECONDS = 5.0
MOST_GLANCES = 120
PROGRESS_SECONDS = 5.0


def watch_shares(
    cluster: Cluster,
    namespace: str,
    shares: Sequence[GpuShare],
    gpus: Mapping[Uuid, KnownGpu],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    said: Callable[[str], None] = lambda _: None,
) -> tuple[list[ShareHistory], list[str]]:
    """(history of each share, agents that were not reached at some time). `namespace`: of gpushare itself.

    `said`: takes a line of progress, every PROGRESS_SECONDS.

    Raises UnreachableError where no agent answers.
    """
    step = max(GLANCE_SECONDS, seconds / MOST_GLANCES)
    watches = [ShareWatch(share) for share in shares]
    begin, started = time.time(), clock()
    unreached: set[str] = set()
    told = 0.0
    for turn in range(int(seconds / step) + 1):
        sleep(max(0.0, started + turn * step - clock()))
        if (passed := clock() - started) >= told + PROGRESS_SECONDS:
            told = passed
            said(f"{passed:.0f} of {seconds:.0f} s watched")
        glance = _glance(cluster, namespace, begin + clock() - started, unreached)
        for watch in watches:
            watch.add(glance)
    end = begin + clock() - started
    return [watch.history(gpus, begin, end, step) for watch in watches], sorted(unreached)


def _glance(cluster: Cluster, namespace: str, at: float, unreached: set[str]) -> Glance:
    """One reading of all agents that answer; `unreached` gets the others."""
    agents = cluster.items(PODS, namespace, labelSelector=AGENTS).result()
    asked = [(agent, answer) for agent in agents if (answer := metrics_of(cluster, agent)) is not None]
    texts, why = [], f'there is none in namespace "{namespace}" (--system-namespace) with metrics'
    for agent, answer in asked:
        try:
            texts.append(answer.result())
        except (KubeError, UnreachableError) as error:
            why = f"{error}; {LOOK}"
            unreached.add(f"the agent of node {agent['spec'].get('nodeName', '')}")
    if not texts:
        raise UnreachableError(f"no agent was reached: {why}; --prometheus reads the history elsewhere")
    return glance_of(at, texts)
