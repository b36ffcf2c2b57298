"""How often a status is written."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.reporting import CACHE_LAG_SECONDS, EARNED_EVERY, SAVED, GpuNodeWriter, Throttle
from gpushare.api.gpunode import GpuNode, GpuNodeStatus
from gpushare.api.meta import Condition
from gpushare.kube.client import GPU_NODES
from tests.unit.fake_kube import FakeKube

INTERVAL = 10.0


def test_the_first_change_after_quiet_is_written_at_once() -> None:
    throttle = Throttle(INTERVAL, counted_at=100.0, last_write=0.0)
    assert throttle.wait(100.0, urgent=False) == 0


def test_the_next_ordinary_change_waits_ten_seconds() -> None:
    throttle = Throttle(INTERVAL, counted_at=0.0)
    throttle.wrote(100.0)
    assert throttle.wait(103.0, urgent=False) == 7.0
    assert throttle.wait(110.0, urgent=False) == 0


def test_a_change_of_readiness_does_not_wait_for_the_last_write() -> None:
    throttle = Throttle(INTERVAL, counted_at=0.0)
    throttle.wrote(100.0)
    assert throttle.wait(101.0, urgent=True) == 0


@given(st.lists(st.floats(0.01, 30.0), min_size=1, max_size=300))
def test_whatever_flaps_is_written_once_in_two_seconds_on_average(pauses: list[float]) -> None:
    throttle, now, written = Throttle(INTERVAL), 0.0, 0
    for pause in pauses:
        now += pause
        if throttle.wait(now, urgent=True) == 0:
            throttle.wrote(now)
            written += 1
    assert written <= now / EARNED_EVERY + SAVED + 1e-6


def said(kind: str, status: Any) -> Condition:
    return Condition(type=kind, status=status, reason="x", last_transition_time="2026-01-01T00:00:00Z")


async def test_the_operators_conditions_cost_no_write() -> None:
    seconds, kube = 0.0, FakeKube()
    kube.put(GPU_NODES, {"metadata": {"name": "n1"}})
    writer = GpuNodeWriter(kube, "n1", lambda: seconds, INTERVAL)  # type: ignore[arg-type]
    ours = GpuNodeStatus(agent_version="1", conditions=[said("NvmlReachable", "True")])
    for conditions, writes in (
        ([*ours.conditions, said("AgentReporting", "True")], 0),
        ([said("NvmlReachable", "Unknown"), said("AgentReporting", "Unknown")], 1),
    ):
        seconds += INTERVAL + CACHE_LAG_SECONDS
        read = ours.model_copy(update={"conditions": conditions})
        await writer.write(ours, GpuNode.model_validate({"metadata": {"name": "n1"}, "status": read}))
        assert len(kube.writes) == writes
