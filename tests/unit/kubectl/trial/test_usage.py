"""What copies use, from an agent's metrics, and why that may not be known."""

from concurrent.futures import Future
from typing import Any

import pytest

from gpushare.kube.resources import KubeError
from gpushare.kubectl.failures import UnreachableError
from gpushare.kubectl.trial.pods import CopyPod
from gpushare.kubectl.trial.usage import (
    NOT_MEASURED,
    AgentUsage,
    UsageReading,
    UsageSampler,
    UsageUnknownError,
    usage_in,
)

METRICS = """\
# TYPE gpushare_gpu_utilization_ratio gauge
gpushare_gpu_utilization_ratio{uuid="GPU-0"} 0.93
gpushare_gpu_utilization_ratio{uuid="GPU-1"} 0.99
# TYPE gpushare_container_memory_used_bytes gauge
gpushare_container_memory_used_bytes{namespace="team",pod="a-0",container="app",share="s",uuid="GPU-0"} 1048577
gpushare_container_memory_used_bytes{namespace="team",pod="a-1",container="app",share="s",uuid="GPU-0"} 2097152
gpushare_container_memory_used_bytes{namespace="team",pod="idle",container="app",share="s",uuid="GPU-0"} 0
gpushare_container_memory_used_bytes{namespace="web",pod="b",container="app",share="s",uuid="GPU-0"} 1048576
gpushare_container_memory_used_bytes{namespace="team",pod="other",container="app",share="s",uuid="GPU-1"} 7340032
gpushare_container_memory_used_bytes{namespace="web",pod="a-0",container="app",share="s",uuid="GPU-1"} 7340032
"""


def pod_with(port: str) -> dict[str, Any]:
    ports = [{"name": port, "containerPort": 9400}]
    return {"metadata": {"namespace": "sys", "name": "agent-x"}, "spec": {"containers": [{"ports": ports}]}}


AGENT = pod_with("metrics")
FORBIDDEN = KubeError(403, "Forbidden", "no", 0.0)


class FakeCluster:
    """A cluster with this answer to the question for the agents of a node, and to that for an agent's metrics."""

    def __init__(self, agents: Any, metrics: Any = METRICS) -> None:
        self._agents, self._metrics = agents, metrics

    def items(self, _: object, namespace: str, **selectors: str) -> Future[Any]:
        assert (namespace, selectors["fieldSelector"]) == ("sys", "spec.nodeName=n1")
        return _answer(self._agents)

    def proxied(self, *where: object) -> Future[Any]:
        assert where == ("sys", "agent-x", 9400, "metrics")
        return _answer(self._metrics)


def _answer(value: Any) -> Future[Any]:
    asked: Future[Any] = Future()
    asked.set_exception(value) if isinstance(value, Exception) else asked.set_result(value)
    return asked


@pytest.mark.parametrize(
    ("pods", "memory", "busy"),
    [({"a-0", "a-1"}, 4, 93), ({"a-0"}, 2, 93), ({"other"}, 7, 99), ({"gone"}, None, None), (set(), None, None)],
    ids=["two pods", "one", "one of another GPU", "one that is gone", "none"],
)
def test_memory_is_of_these_pods_and_utilisation_of_their_gpu(
    pods: set[str], memory: int | None, busy: float | None
) -> None:
    reading = usage_in(METRICS, "team", pods)
    assert (reading.memory_mib, reading.busy_percent) == (memory, pytest.approx(busy) if busy else None)


def test_others_are_those_that_use_memory_of_the_same_gpu() -> None:
    assert usage_in(METRICS, "team", {"a-0", "a-1"}).others == {"web/b"}
    assert usage_in(METRICS, "team", {"other"}).others == {"web/a-0"}


def test_metrics_of_an_agent_without_figures_tell_nothing() -> None:
    assert usage_in("", "team", {"a-0"}) == UsageReading(None, None)


ACTIVITY = (
    "# TYPE gpushare_container_launches counter\n"
    'gpushare_container_launches_total{namespace="team",pod="a-0",container="app",share="s",uuid="GPU-0",class="Normal"}'
)
IDLE = (
    "# TYPE gpushare_container_unused_seconds gauge\n"
    'gpushare_container_unused_seconds{namespace="team",pod="cpu",container="app",share="s",uuid="GPU-0"} 3\n'
)


@pytest.mark.parametrize(
    ("metrics", "pod", "looks", "used"),
    [
        (METRICS, "a-0", 1, True),
        (f"{METRICS}{ACTIVITY} 7\n", "a-0", 1, True),
        (f"{METRICS}{ACTIVITY} 0\n", "a-0", 1, None),
        (f"{METRICS}{ACTIVITY} 0\n", "a-0", 3, False),
        (f"{METRICS}{IDLE}", "cpu", 2, None),
        (f"{METRICS}{IDLE}", "cpu", 3, False),
        (METRICS, "not listed", 9, None),
    ],
    ids=["memory", "launches", "at first none", "no launches", "not yet", "no client", "an agent that does not know"],
)
def test_a_program_is_known_to_use_the_gpu_or_never_to_do_so(
    metrics: str, pod: str, looks: int, used: bool | None
) -> None:
    sampler = UsageSampler(lambda node, namespace, pods: usage_in(metrics, namespace, pods), "team")
    copy = CopyPod(0, "", "app", {"metadata": {"name": pod}, "spec": {"nodeName": "n1"}})
    for _ in range(looks):
        sampler.look([copy], within_window=True)
    assert sampler.used_gpu is used


def test_the_agent_of_the_node_is_asked() -> None:
    assert AgentUsage(FakeCluster([AGENT]), "sys")("n1", "team", {"a-1"}).memory_mib == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (FakeCluster([]), "no agent on node n1 in namespace sys"),
        (FakeCluster([pod_with("health")]), "the agent serves no metrics (chart value metrics.enabled)"),
        (FakeCluster(FORBIDDEN), "that needs the right to list pods and to get pods/proxy in namespace sys"),
        (FakeCluster([AGENT], FORBIDDEN), "that needs the right to list pods and to get pods/proxy in namespace sys"),
        (FakeCluster([AGENT], KubeError(503, "", "starting", 0.0)), "the agent was not reached: "),
        (FakeCluster([AGENT], UnreachableError("no answer")), "the agent was not reached: no answer"),
    ],
    ids=["no agent", "no metrics", "no right to list", "no right to the proxy", "503", "unreachable"],
)
def test_why_nothing_is_known_is_told_in_a_sentence(cluster: FakeCluster, words: str) -> None:
    with pytest.raises(UsageUnknownError) as told:
        AgentUsage(cluster, "sys")("n1", "team", {"a-0"})  # type: ignore[arg-type]
    assert str(told.value).startswith(NOT_MEASURED + words)
