"""The agent's Lease: renewed every ten seconds, while the agent works."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.agent.status.heartbeat import RETRY_SECONDS, Heartbeat
from gpushare.kube.client import GPU_NODES, KubeError, Object
from gpushare.kube.coordination.heartbeat import RENEW_SECONDS, heartbeat_spec, renewals
from gpushare.kube.resources import LEASES
from tests.unit.fake_kube import FakeKube

NAMESPACE = "gpushare-system"


@dataclass
class Node:
    """`problem`: why the agent does not work."""

    kube: FakeKube = field(default_factory=FakeKube)
    seconds: float = 500.0
    problem: str | None = None
    spread: float = 1.0

    def __post_init__(self) -> None:
        self.kube.put(GPU_NODES, {"metadata": {"name": "n1"}})
        kube: Any = self.kube
        self.heartbeat = Heartbeat(
            kube,
            NAMESPACE,
            "n1",
            "agent-x",
            lambda: self.seconds,
            self._gpu_node,
            lambda: self.problem,
            lambda: self.spread,
        )

    def _gpu_node(self) -> Object | None:
        return next(iter(self.kube.all(GPU_NODES)), None)

    async def turns(self, seconds: int) -> None:
        """The agent's loop, once a second."""
        for _ in range(seconds):
            await self.heartbeat.renew()
            self.seconds += 1.0

    def lease(self) -> Object:
        return self.kube.live(LEASES, "n1", NAMESPACE)


@pytest.fixture
def node() -> Node:
    return Node()


async def test_the_lease_is_named_after_the_node_and_goes_with_its_gpunode(node: Node) -> None:
    await node.turns(1)
    (owner,) = node.lease()["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuNode", "name": "n1", "uid": "uid-n1"}
    assert node.lease()["metadata"]["labels"]["app.kubernetes.io/component"] == "agent"
    spec = node.lease()["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("agent-x", 40)


async def test_in_a_minute_it_is_renewed_six_times_and_nothing_else_is_asked(node: Node) -> None:
    await node.turns(1)
    node.kube.requests.clear()
    node.seconds += RENEW_SECONDS
    await node.turns(60)
    assert node.kube.requests == ["patch leases/n1"] * 6


@pytest.mark.parametrize(("spread", "second"), [(0.0, 1), (0.25, 3), (0.75, 8), (1.0, 10)])
async def test_agents_that_start_together_renew_apart_from_the_second_time_on(spread: float, second: int) -> None:
    node = Node(spread=spread)
    at = []
    for turn in range(40):
        node.kube.requests.clear()
        await node.turns(1)
        at += [turn] * len([item for item in node.kube.requests if item == "patch leases/n1"])
    assert at[1:] == [second, second + 10, second + 20, *([second + 30] if second + 30 < 40 else [])]


async def test_an_agent_that_does_not_work_renews_nothing_until_it_does(node: Node) -> None:
    node.problem = "the last tick was 61 s ago"
    await node.turns(30)
    assert node.kube.requests == []
    node.problem = None
    await node.turns(1)
    assert node.lease()["spec"]["holderIdentity"] == "agent-x"


async def test_without_a_gpunode_there_is_no_lease(node: Node) -> None:
    node.kube.remove(GPU_NODES, "n1")
    await node.turns(20)
    assert node.kube.requests == []


async def test_a_lease_that_somebody_deleted_is_made_again_at_the_next_renewal(node: Node) -> None:
    await node.turns(1)
    node.kube.remove(LEASES, "n1", NAMESPACE)
    await node.turns(10)
    assert node.lease()["spec"]["holderIdentity"] == "agent-x"


@pytest.mark.parametrize(
    "error", [KubeError(403, "Forbidden", "a policy says no"), OSError("no route"), TimeoutError()]
)
async def test_a_renewal_that_fails_is_tried_again_soon_and_ends_nothing(node: Node, error: Exception) -> None:
    node.kube.fail("patch leases", error)
    await node.turns(7)
    assert node.kube.requests == ["patch leases/n1"] * 3, f"every {RETRY_SECONDS:g} s"
    node.kube.heal()
    await node.turns(3)
    assert node.lease()["spec"]["holderIdentity"] == "agent-x"


def test_a_lease_is_read_within_bounds_and_needs_a_time() -> None:
    spec = heartbeat_spec("x" * 5000, datetime(2026, 1, 1, tzinfo=UTC))
    leases: list[Object] = [
        {"metadata": {"name": "long", "resourceVersion": "7"}, "spec": {**spec, "renewTime": "t" * 5000}},
        {"metadata": {"name": "empty", "resourceVersion": "8"}, "spec": {"holderIdentity": "x"}},
        {"metadata": {"name": "bare", "resourceVersion": "9"}},
    ]
    renewed = renewals(leases)
    assert renewed.keys() == {"long"}
    assert (renewed["long"].version, len(renewed["long"].holder), len(renewed["long"].time)) == (7, 253, 40)
