"""The way from Leases to the conditions of GpuNodes, and to silence while nothing changes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.controller.cache.fleet_cache import known_gpu_node
from gpushare.controller.heartbeats.ages import POLL_SECONDS
from gpushare.controller.heartbeats.conditions import Silence, conditions
from gpushare.controller.heartbeats.monitor import HeartbeatMonitor
from gpushare.kube.cache.store import Store
from gpushare.kube.client import EVENTS, GPU_NODES, KubeError, Object
from gpushare.kube.coordination.heartbeat import heartbeat_lease, heartbeat_spec
from gpushare.kube.resources import LEASES
from tests.unit.fake_kube import FakeKube

NAMESPACE = "gpushare-system"
NOW = "2026-03-01T00:00:00Z"
EARLIER = "2026-01-01T00:00:00Z"
AGENTS_OWN: list[Object] = [
    {"type": "NvmlReachable", "status": "True", "reason": "Reachable", "message": "", "lastTransitionTime": EARLIER},
    {"type": "WaitingForClients", "status": "False", "reason": "NothingWaits", "lastTransitionTime": EARLIER},
]


class Fleet:
    """Node n1 with a GpuNode and an agent, and an operator that looks at it."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.seconds = 0.0
        self.changes = 0
        self.renewals = 0
        self.sent_away: set[str] = set()
        self.kube.put(GPU_NODES, {"metadata": {"name": "n1"}, "status": {"conditions": AGENTS_OWN}})
        self.restart()

    def restart(self) -> None:
        """Another operator takes over."""
        self.store = Store(known_gpu_node, self._changed)
        kube: Any = self.kube
        now = datetime(2026, 3, 1, tzinfo=UTC)
        self.monitor = HeartbeatMonitor(
            kube, NAMESPACE, "operator-0", self.store, self.sent_away.__contains__, lambda: self.seconds, lambda: now
        )

    def _changed(self) -> None:
        self.changes += 1

    def renew(self) -> None:
        self.renewals += 1
        spec = heartbeat_spec("agent-x", datetime(2031, 1, 1, 0, 0, self.renewals % 60, tzinfo=UTC))
        lease = heartbeat_lease("n1", self.kube.live(GPU_NODES, "n1"), spec)
        self.kube.put(LEASES, {**lease, "metadata": {**lease["metadata"], "namespace": NAMESPACE}})

    async def turns(self, count: int, *, renewed: bool = False) -> None:
        for _ in range(count):
            self.seconds += POLL_SECONDS
            if renewed:
                self.renew()
            for obj in self.kube.all(GPU_NODES):
                self.store.put(obj)
            await self.monitor.turn()

    def conditions(self) -> dict[str, Object]:
        return {item["type"]: item for item in self.kube.live(GPU_NODES, "n1")["status"]["conditions"]}

    def statuses(self) -> dict[str, str]:
        return {kind: item["status"] for kind, item in self.conditions().items()}

    def events(self) -> list[str]:
        return [event["reason"] for event in self.kube.all(EVENTS)]


ALL_UNKNOWN = {"NvmlReachable": "Unknown", "WaitingForClients": "Unknown", "AgentReporting": "Unknown"}
AS_THE_AGENT_SAYS = {"NvmlReachable": "True", "WaitingForClients": "False", "AgentReporting": "True"}


@pytest.fixture
async def fleet() -> Fleet:
    """Its agent was seen to renew its Lease."""
    fleet = Fleet()
    fleet.renew()
    await fleet.turns(2, renewed=True)
    return fleet


async def test_an_agent_that_renews_its_lease_is_said_to_report(fleet: Fleet) -> None:
    assert fleet.statuses() == AS_THE_AGENT_SAYS
    assert fleet.conditions()["NvmlReachable"] == AGENTS_OWN[0]
    assert fleet.conditions()["AgentReporting"]["lastTransitionTime"] == NOW
    assert fleet.events() == [], "a beginning is no recovery"


async def test_renewals_lead_to_no_write_and_wake_no_round(fleet: Fleet) -> None:
    await fleet.turns(1, renewed=True)
    fleet.kube.requests.clear()
    fleet.kube.writes.clear()
    fleet.changes = 0
    await fleet.turns(50, renewed=True)
    assert set(fleet.kube.requests) == {"list leases"}
    assert fleet.changes == 0


async def test_a_silent_agent_makes_every_condition_unknown_since_its_heartbeat(fleet: Fleet) -> None:
    await fleet.turns(4)
    assert fleet.statuses() == ALL_UNKNOWN
    conditions = fleet.conditions()
    assert {item["reason"] for item in conditions.values()} == {"AgentSilent"}
    assert {item["lastTransitionTime"] for item in conditions.values()} == {NOW}
    last = "2031-01-01T00:00:03.000000Z"
    assert f"no heartbeat since {last} (pod agent-x)" in conditions["AgentReporting"]["message"]
    assert conditions["NvmlReachable"]["message"] == (f"no news from the agent; it said until {last}: True (Reachable)")
    assert fleet.store.get("n1").silence, "the plan is made with it at once"
    assert fleet.changes > 0
    assert fleet.events() == ["AgentSilent"]


async def test_silence_is_written_once(fleet: Fleet) -> None:
    await fleet.turns(4)
    fleet.kube.requests.clear()
    fleet.kube.writes.clear()
    await fleet.turns(20)
    assert fleet.kube.writes == []


async def test_an_agent_that_is_back_corrects_its_conditions_itself(fleet: Fleet) -> None:
    await fleet.turns(4)
    await fleet.turns(1, renewed=True)
    assert fleet.statuses() == {**ALL_UNKNOWN, "AgentReporting": "True"}
    assert fleet.events() == ["AgentSilent", "AgentReporting"]


async def test_a_condition_of_a_silent_agent_is_corrected_but_not_in_a_race(
    fleet: Fleet,
) -> None:
    await fleet.turns(4)
    fleet.kube.requests.clear()
    fleet.kube.writes.clear()
    for _ in range(12):
        reporting = fleet.conditions()["AgentReporting"]
        node = fleet.kube.live(GPU_NODES, "n1")
        fleet.kube.put(GPU_NODES, {**node, "status": {"conditions": [*AGENTS_OWN, reporting]}})
        await fleet.turns(1)
    assert len(fleet.kube.writes) == 3, "once in 40 s"
    assert fleet.events() == ["AgentSilent"]


async def test_an_agent_that_was_sent_away_makes_all_unknown_and_nothing_wrong(fleet: Fleet) -> None:
    fleet.sent_away.add("n1")
    await fleet.turns(4)
    assert fleet.statuses() == ALL_UNKNOWN
    assert "while its driver is replaced" in fleet.conditions()["AgentReporting"]["message"]
    (event,) = fleet.kube.all(EVENTS)
    assert (event["type"], event["reason"]) == ("Normal", "AgentSilent")


async def test_a_silent_agent_that_is_sent_away_gets_an_event_of_its_own(fleet: Fleet) -> None:
    await fleet.turns(4)
    await fleet.turns(1, renewed=True)
    fleet.sent_away.add("n1")
    await fleet.turns(4)
    silent = [event for event in fleet.kube.all(EVENTS) if event["reason"] == "AgentSilent"]
    assert sorted(event["type"] for event in silent) == ["Normal", "Warning"]


async def test_another_operator_says_nothing_before_it_has_watched_for_the_lease(fleet: Fleet) -> None:
    fleet.restart()
    fleet.kube.requests.clear()
    fleet.kube.writes.clear()
    await fleet.turns(4)
    assert fleet.kube.writes == []
    await fleet.turns(1)
    assert fleet.statuses()["AgentReporting"] == "Unknown"


async def test_a_silent_agent_stays_so_for_another_operator_until_a_renewal(fleet: Fleet) -> None:
    await fleet.turns(4)
    fleet.restart()
    fleet.kube.requests.clear()
    fleet.kube.writes.clear()
    await fleet.turns(10)
    assert fleet.kube.writes == []
    await fleet.turns(1, renewed=True)
    assert fleet.statuses()["AgentReporting"] == "True"


async def test_while_leases_cannot_be_read_nobody_falls_silent(fleet: Fleet) -> None:
    fleet.kube.fail("list leases", KubeError(403, "Forbidden", "no"))
    await fleet.turns(50)
    fleet.kube.heal()
    await fleet.turns(1)
    assert fleet.statuses()["AgentReporting"] == "True"


async def test_what_could_not_be_written_is_written_at_the_next_turn(fleet: Fleet) -> None:
    fleet.kube.fail("patch gpunodes", KubeError(409, "Conflict", "the agent wrote"))
    await fleet.turns(4)
    assert fleet.statuses()["AgentReporting"] == "True"
    assert fleet.events() == []
    fleet.kube.heal()
    await fleet.turns(1)
    assert fleet.statuses() == ALL_UNKNOWN
    assert fleet.events() == ["AgentSilent"]


async def test_a_status_that_the_agent_writes_meanwhile_is_not_overwritten(fleet: Fleet) -> None:
    """The patch carries the version that it was made from."""
    await fleet.turns(3)
    stale = fleet.kube.live(GPU_NODES, "n1")
    real_get = fleet.kube.get

    async def get(*where: Any) -> Object:
        answer = await real_get(*where)
        if where[0] == GPU_NODES:
            fleet.kube.put(GPU_NODES, {**stale, "status": {**stale["status"], "agentVersion": "new"}})
        return answer

    fleet.kube.get = get  # type: ignore[method-assign]
    await fleet.turns(1)
    assert fleet.kube.live(GPU_NODES, "n1")["status"]["agentVersion"] == "new"
    assert fleet.statuses()["AgentReporting"] == "True", "it is judged again at the next turn"


async def test_the_event_is_recorded_though_the_watch_is_faster_than_the_answer(fleet: Fleet) -> None:
    real_patch = fleet.kube.patch

    async def patch(*where: Any, **how: Any) -> Object:
        answer = await real_patch(*where, **how)
        if where[0] == GPU_NODES:
            fleet.store.put(answer)
        return answer

    fleet.kube.patch = patch  # type: ignore[method-assign]
    await fleet.turns(4)
    await fleet.turns(1, renewed=True)
    assert fleet.events() == ["AgentSilent", "AgentReporting"]


async def test_a_node_without_a_lease_is_silent_after_forty_seconds() -> None:
    fleet = Fleet()
    await fleet.turns(4)
    assert "AgentReporting" not in fleet.statuses()
    await fleet.turns(1)
    assert fleet.statuses() == ALL_UNKNOWN
    assert "has renewed no heartbeat yet" in fleet.conditions()["AgentReporting"]["message"]


async def test_the_operators_own_lease_is_no_agents_heartbeat(fleet: Fleet) -> None:
    """Even on a node of its name: agents' Leases carry a label."""
    fleet.kube.put(GPU_NODES, {"metadata": {"name": "gpushare-operator"}, "status": {}})
    for count in range(6):
        spec = heartbeat_spec("operator-0", datetime(2031, 1, 1, 0, 1, count, tzinfo=UTC))
        fleet.kube.put(LEASES, {"metadata": {"name": "gpushare-operator", "namespace": NAMESPACE}, "spec": spec})
        await fleet.turns(1, renewed=True)
    (condition,) = fleet.kube.live(GPU_NODES, "gpushare-operator")["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("AgentReporting", "Unknown")
    assert fleet.statuses()["AgentReporting"] == "True"


def test_a_condition_that_is_unknown_already_keeps_its_words_and_its_time() -> None:
    first = conditions(AGENTS_OWN, False, Silence(None), EARLIER)
    assert conditions(first, False, Silence(None), NOW) == first
    assert {item["lastTransitionTime"] for item in first} == {EARLIER}
