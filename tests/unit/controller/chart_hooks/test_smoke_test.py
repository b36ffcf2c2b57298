"""`helm test` finds what does not work, each part by itself, and changes nothing."""

from typing import Any

import pytest

from gpushare.api.conditions import AGENT_REPORTING
from gpushare.controller.chart_hooks.smoke_test import problems
from gpushare.kube.client import GPU_NODES, GPU_SHARES, KubeError, Object
from gpushare.kube.resources import LEASES
from tests.unit.fake_kube import FakeKube

REFUSED = KubeError(403, "Forbidden", "admission webhook denied the request: spec.gpus.products[0] is blank")
UNREACHED = KubeError(500, "InternalError", 'failed calling webhook: no endpoints available for service "x"')


def node(name: str, status: str) -> Object:
    condition = {
        "type": AGENT_REPORTING,
        "status": status,
        "reason": "x",
        "message": "silent for 3 min",
        "lastTransitionTime": "2026-01-02T00:00:00Z",
    }
    return {"metadata": {"name": name, "uid": name}, "status": {"conditions": [condition]}}


def installed(holder: str = "operator-0", reporting: str = "True") -> Any:
    kube = FakeKube()
    kube.put(LEASES, {"metadata": {"name": "gpushare-operator", "namespace": "ns"}, "spec": {"holderIdentity": holder}})
    kube.put(GPU_NODES, node("n1", reporting))
    kube.fail("create", REFUSED)
    return kube


async def test_an_installation_that_works_has_no_problem_and_is_not_changed() -> None:
    kube = installed()
    assert await problems(kube, "ns") == []
    assert kube.all(GPU_SHARES) == []


async def test_a_webhook_that_is_not_reached_or_not_asked_is_told() -> None:
    kube = installed()
    kube.fail("create", UNREACHED)
    (problem,) = await problems(kube, "ns")
    assert "does not reach the webhook" in problem
    assert "no endpoints" in problem
    kube.heal()
    (problem,) = await problems(kube, "ns")
    assert "does not call the webhook" in problem
    assert kube.all(GPU_SHARES) == [], "a dry run"


@pytest.mark.parametrize(
    ("kube", "words"),
    [
        (installed(holder=""), "no operator is active"),
        (installed(reporting="Unknown"), "n1: silent for 3 min"),
    ],
)
async def test_an_operator_or_an_agent_that_is_gone_is_told(kube: Any, words: str) -> None:
    (problem,) = await problems(kube, "ns")
    assert words in problem
