"""Claims that no kubelet will unprepare are given up, and no other claim ever is."""

from pathlib import Path

import pytest

from gpushare.agent.dra.gone import GONE_SECONDS, GoneClaims
from gpushare.agent.dra.prepared import PreparedClaim, PreparedClaims, PreparedPart
from gpushare.grant.model import Grant
from gpushare.kube.client import RESOURCE_CLAIMS
from tests.unit.agent.dra.objects import UID, claim
from tests.unit.fake_kube import FakeKube

OTHER = "00000000-2222-3333-4444-555555555555"


class Node:
    """One prepared claim, which no pod uses and the API does not have."""

    def __init__(self, directory: Path) -> None:
        self.kube = FakeKube()
        self.now = 0.0
        self.used: set[tuple[str, str]] | None = set()
        self.claims = PreparedClaims(directory)
        part = PreparedPart("GPU-0", "gpu", "n", "gpu-0", "", Grant("a", 10, 2048, 1))
        self.claims.add(PreparedClaim(UID, "ns", "c", (part,)))
        self.gone = GoneClaims(self.kube, self.claims, lambda: self.used, self.claims.remove, lambda: self.now)  # type: ignore[arg-type]

    async def after(self, seconds: float) -> bool:
        """Tells whether the claim is prepared then."""
        self.now += seconds
        await self.gone.give_up()
        return self.claims.get(UID) is not None


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_claim_that_is_gone_is_given_up_after_a_while(node: Node) -> None:
    assert await node.after(0)
    assert await node.after(GONE_SECONDS - 1)
    assert not await node.after(1)
    assert not node.claims.holdings()


async def test_another_claim_of_its_name_does_not_keep_it(node: Node) -> None:
    node.kube.put(RESOURCE_CLAIMS, claim(uid=OTHER))
    assert await node.after(0)
    assert not await node.after(GONE_SECONDS)


async def test_a_claim_of_the_api_is_kept(node: Node) -> None:
    node.kube.put(RESOURCE_CLAIMS, claim())
    assert await node.after(0)
    assert await node.after(10 * GONE_SECONDS)


async def test_a_claim_that_a_pod_may_use_is_kept(node: Node) -> None:
    for used in ({("ns", "c")}, None):
        assert await node.after(0)
        node.used = used
        assert await node.after(GONE_SECONDS)
        node.used = set()
        assert await node.after(GONE_SECONDS)


async def test_a_claim_is_kept_while_the_api_server_does_not_answer(node: Node) -> None:
    assert await node.after(0)
    node.kube.fail("get resourceclaims", TimeoutError("no answer"))
    assert await node.after(GONE_SECONDS)
