"""What kopf calls, against a real Operator without an API server."""

from types import SimpleNamespace
from typing import Any, cast

import kopf
import pytest

from gpushare.controller import handlers
from gpushare.controller.operator import Operator
from gpushare.controller.settings import OperatorSettings
from gpushare.kube.client import NODES
from gpushare.kube.coordination.elector import LeaseLostError
from gpushare.kube.resources import LEASES
from tests.unit.fake_kube import FakeKube


@pytest.fixture
def election() -> FakeKube:
    """The API server as the election sees it, which is asked by a thread of its own."""
    return FakeKube()


@pytest.fixture
def operator(kube: FakeKube, election: FakeKube, settings: OperatorSettings) -> Operator:
    async def connect() -> FakeKube:
        return election

    return Operator(kube, settings, connect)


@pytest.fixture
def memo(operator: Operator) -> kopf.Memo:
    return kopf.Memo(operator=operator)


def event(kind: str | None, version: int) -> Any:
    metadata = {"name": "a", "uid": "u", "resourceVersion": str(version)}
    return {
        "type": kind,
        "object": {"metadata": metadata, "spec": {"clients": {"perGpu": 1, "memory": {"default": "1Gi"}}}},
    }


async def test_a_share_is_known_from_its_first_event_to_its_deletion(operator: Operator, memo: kopf.Memo) -> None:
    shares = operator.reconciler.cache.shares
    await handlers.share_changed(event=event(None, 1), memo=memo)
    assert shares.get("a") is not None
    await handlers.share_changed(event=event("MODIFIED", 2), memo=memo)
    await handlers.share_changed(event=event("DELETED", 3), memo=memo)
    assert shares.get("a") is None


async def test_a_replica_that_waits_is_healthy(memo: kopf.Memo) -> None:
    assert await handlers.reconcile(memo=memo) == "ok"


async def test_a_round_that_hangs_is_an_error_that_kopf_answers_with_500() -> None:
    stuck = SimpleNamespace(reconciler=SimpleNamespace(stalled_seconds=lambda: handlers.STUCK_SECONDS + 1))
    with pytest.raises(kopf.PermanentError, match="nothing has moved for 301 s"):
        await handlers.reconcile(memo=kopf.Memo(operator=cast(Operator, stuck)))


async def test_the_operator_follows_the_fleet_only_while_it_leads(
    kube: FakeKube, election: FakeKube, operator: Operator
) -> None:
    with pytest.raises(LeaseLostError):
        await kube.delete(NODES, "n1")
    operator.start()
    assert operator.reconciler.cache.nodes.objects == {}
    await kube.until(lambda: operator.reconciler.reports)
    assert operator.leads
    assert set(operator.reconciler.cache.nodes.objects) == {("", "n1")}
    await operator.stop()
    operator.result()
    assert election.live(LEASES, "gpushare-operator")["spec"].get("holderIdentity") is None


def test_a_scrape_tells_which_agents_report_where_that_is_known(operator: Operator) -> None:
    for number, (name, status) in enumerate({"n1": "True", "n2": "Unknown", "n3": ""}.items(), start=1):
        reporting = {"type": "AgentReporting", "status": status, "reason": "x", "lastTransitionTime": "x"}
        conditions = {"conditions": [reporting] if status else []}
        metadata = {"name": name, "resourceVersion": str(number)}
        operator.reconciler.cache.gpu_nodes.put({"metadata": metadata, "status": conditions})
    operator.exported.refresh()
    scraped = operator.exported.registry.get_sample_value
    values = [scraped("gpushare_agent_reporting", {"node": name}) for name in ("n1", "n2", "n3")]
    assert values == [1.0, 0.0, None]
