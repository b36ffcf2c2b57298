"""Which agents are asked, when and how often: the API server's cost is bounded, whatever the fleet."""

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpushare.kubectl.cluster import UnreachableError
from gpushare.kubectl.page.cluster.scrapes import (
    LOOKING_SECONDS,
    PER_SECOND,
    SEEN_SECONDS,
    AgentPod,
    Scraper,
    ScrapeSchedule,
)
from gpushare.kubectl.page.content.feed import Feed
from tests.unit.clock import Clock


@given(st.integers(0, 300), st.integers(0, 20), st.lists(st.floats(0.1, 5.0), min_size=5, max_size=60))
def test_no_more_are_asked_than_the_budget_and_nobody_too_often(fleet: int, seen: int, waits: list[float]) -> None:
    schedule, now, asked = ScrapeSchedule(), 0.0, 0
    nodes = [f"n{number}" for number in range(fleet)]
    last: dict[str, float] = {}
    for wait in waits:
        now += wait
        for node in schedule.due(nodes, set(nodes[:seen]), now):
            assert now - last.get(node, -SEEN_SECONDS) >= SEEN_SECONDS
            last[node] = now
            asked += 1
        assert asked <= PER_SECOND * (now - waits[0]) + 2 * PER_SECOND


def test_those_on_screen_come_first_and_everybody_has_a_turn() -> None:
    schedule, nodes = ScrapeSchedule(), [f"n{number}" for number in range(200)]
    count: Counter[str] = Counter()
    for turn in range(200):
        count.update(schedule.due(nodes, {"n7", "n9"}, turn * 0.5))
    assert count["n7"] == count["n9"] == 20
    assert min(count[node] for node in nodes) >= 3


class Asked:
    """A scraper of one agent, without its thread."""

    def __init__(self, port: int = 9408, fails: str = "") -> None:
        self.clock, self.notes, self.fails = Clock(), dict[str, str](), fails
        self.feed = Feed()
        self.scraper = Scraper(self.feed, self.ask, self.notes.__setitem__, self.clock, self.clock)
        ports = [{"name": "metrics", "containerPort": port}] if port else []
        pod: dict[str, Any] = {
            "metadata": {"namespace": "gpushare-system", "name": "agent-1"},
            "spec": {"nodeName": "n1", "containers": [{"ports": ports}]}, "status": {"podIP": "10.0.0.1"},
        }  # fmt: skip
        self.scraper.put_agent(pod)

    def ask(self, agent: AgentPod) -> str:
        assert agent == AgentPod("gpushare-system", "agent-1", "n1", 9408, "10.0.0.1")
        if self.fails:
            raise UnreachableError(self.fails)
        return 'gpushare_gpu_utilization_ratio{uuid="GPU-a"} 0.5\n'


def test_what_an_agent_said_goes_with_it_also_if_it_says_it_just_then() -> None:
    asked = Asked()
    asked.scraper.looking(["n1"])
    [agent] = asked.scraper.due()
    asked.scraper.scrape(agent)
    assert figures(asked) != {}
    asked.scraper.remove_agent(("gpushare-system", "agent-1"))
    assert figures(asked) == {}
    asked.scraper.scrape(agent)
    assert figures(asked) == {}


def figures(asked: Asked) -> dict[str, Any]:
    """What the page has of node n1."""
    rows = json.loads(asked.feed.changes(asked.feed.epoch, 0))["changed"]
    return {key: row for key, row in rows.items() if key.startswith("figures/")}


def test_nobody_is_asked_while_no_browser_looks() -> None:
    asked = Asked()
    assert asked.scraper.due() == []
    asked.scraper.looking([])
    assert [agent.node for agent in asked.scraper.due()] == ["n1"]
    asked.clock.now += LOOKING_SECONDS + 1
    assert asked.scraper.due() == []


def test_an_agent_that_has_not_answered_yet_is_not_asked_again() -> None:
    asked = Asked()
    asked.scraper.looking([])
    (agent,) = asked.scraper.due()
    asked.clock.now += SEEN_SECONDS
    asked.scraper.looking([])
    assert asked.scraper.due() == []
    asked.scraper.scrape(agent)
    asked.clock.now += 0.5
    assert asked.scraper.due() == [agent]


def test_what_fails_is_noted_until_it_works_again() -> None:
    asked = Asked(fails="it sleeps")
    asked.scraper.looking([])
    (agent,) = asked.scraper.due()
    asked.scraper.scrape(agent)
    asked.scraper.note_failures()
    assert asked.notes["figures"] == "no figures of node n1: it sleeps"
    asked.fails = ""
    asked.scraper.scrape(agent)
    asked.scraper.note_failures()
    assert asked.notes["figures"] == ""


def test_an_agent_without_metrics_says_which_value_switches_them_on() -> None:
    asked = Asked(port=0)
    asked.scraper.looking([])
    (agent,) = asked.scraper.due()
    asked.scraper.scrape(agent)
    asked.scraper.note_failures()
    assert "metrics.enabled" in asked.notes["figures"]
