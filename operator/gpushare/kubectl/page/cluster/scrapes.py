"""Asks agents for their metrics: those on screen every few seconds, the others as the budget has it.

The API server carries each answer, so PER_SECOND bounds what the page costs it, however large the fleet is; nobody is
asked while no browser looks.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpushare.kube.resources import KubeError, Object
from gpushare.kubectl.failures import UnreachableError
from gpushare.kubectl.page.cluster.fair_store import Key
from gpushare.kubectl.page.content.feed import Feed, Row
from gpushare.kubectl.page.content.figures import FigureHistory
from gpushare.messages.wording import count_of

SEEN_SECONDS = 5.0
"""The time between two readings of a node that is on screen, and of any node of a small fleet."""
PER_SECOND = 8.0
AT_ONCE = 8
TURN_SECONDS = 0.5
LOOKING_SECONDS = 15.0
"""A browser that has asked for changes within this time looks."""
MOST_SEEN = 64


@dataclass(frozen=True, slots=True)
class AgentPod:
    """The pod in which an agent serves its metrics. `port`: 0 where it serves none."""

    namespace: str
    name: str
    node: str
    port: int
    address: str


def agent_pod(pod: Object) -> AgentPod:
    spec, metadata = pod.get("spec") or {}, pod["metadata"]
    ports = [port for container in spec.get("containers") or () for port in container.get("ports") or ()]
    port_number = next((int(port["containerPort"]) for port in ports if port.get("name") == "metrics"), 0)
    address = str((pod.get("status") or {}).get("podIP") or "")
    return AgentPod(metadata["namespace"], metadata["name"], str(spec.get("nodeName") or ""), port_number, address)


class ScrapeSchedule:
    """Decides who is asked next. Times are seconds of one clock that never goes back. Not safe for several threads."""

    def __init__(self) -> None:
        self._asked: dict[str, float] = {}
        self._allowance = 0.0
        self._last: float | None = None

    def due(self, nodes: Collection[str], seen: Collection[str], now: float) -> list[str]:
        """The nodes to ask now, those that are `seen` first, each of them the one asked longest ago first."""
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        self._allowance = min(2 * PER_SECOND, self._allowance + passed * PER_SECOND) if passed else PER_SECOND
        waiting = [node for node in nodes if now - self._asked.get(node, -SEEN_SECONDS) >= SEEN_SECONDS]
        order = sorted(waiting, key=lambda node: (node not in seen, self._asked.get(node, -1.0), node))
        chosen = order[: int(self._allowance)]
        self._allowance -= len(chosen)
        self._asked |= dict.fromkeys(chosen, now)
        return chosen


class Scraper:
    """Puts the figures of all nodes into the feed. `ask`: the metrics of an agent, raising KubeError or
    UnreachableError; `clock`: seconds that never go back; `wall`: seconds since 1970."""

    def __init__(
        self,
        feed: Feed,
        ask: Callable[[AgentPod], str],
        note: Callable[[str, str], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._feed, self._ask, self._note, self._clock, self._wall = feed, ask, note, clock, wall
        self._lock = threading.Lock()
        self._agents: dict[Key, AgentPod] = {}
        self._seen: dict[str, float] = {}
        self._looked: float | None = None
        self._schedule = ScrapeSchedule()
        self._history = FigureHistory()
        self._failed: dict[str, str] = {}
        self._under_way: set[str] = set()

    def put_agent(self, pod: Object) -> None:
        agent = agent_pod(pod)
        with self._lock:
            self._agents[agent.namespace, agent.name] = agent

    def remove_agent(self, key: Key) -> None:
        with self._lock:
            gone = self._agents.pop(key, None)
            nodes = {agent.node for agent in self._agents.values()}
        if gone is not None and gone.node not in nodes:
            self._feed.replace(f"figures/{gone.node}", {})

    def looking(self, nodes: Iterable[str]) -> None:
        """A browser looks, at these nodes."""
        with self._lock:
            self._looked = self._clock()
            self._seen |= dict.fromkeys(list(nodes)[:MOST_SEEN], self._looked)

    def run(self, stop: threading.Event) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            while not stop.wait(TURN_SECONDS):
                for agent in self.due():
                    pool.submit(self.scrape, agent)
                self.note_failures()

    def due(self) -> list[AgentPod]:
        with self._lock:
            now = self._clock()
            if self._looked is None or now - self._looked > LOOKING_SECONDS:
                return []
            self._seen = {node: at for node, at in self._seen.items() if now - at <= LOOKING_SECONDS}
            agents = {
                agent.node: agent for agent in self._agents.values() if agent.node and agent.node not in self._under_way
            }
            chosen = [agents[node] for node in self._schedule.due(agents.keys(), self._seen.keys(), now)]
            self._under_way |= {agent.node for agent in chosen}
            return chosen

    def scrape(self, agent: AgentPod) -> None:
        try:
            rows, why = self._rows(agent), ""
        except (KubeError, UnreachableError, ValueError, OverflowError) as error:
            rows, why = {}, str(error)
        with self._lock:
            self._under_way.discard(agent.node)
            self._failed.pop(agent.node, None)
            if why:
                self._failed[agent.node] = why
            if all(agent.node != known.node for known in self._agents.values()):
                rows = {}  # it has gone meanwhile
        self._feed.replace(f"figures/{agent.node}", rows)

    def _rows(self, agent: AgentPod) -> Mapping[str, Row]:
        if not agent.port:
            raise UnreachableError("the agent serves no metrics (chart value metrics.enabled)")
        text = self._ask(agent)
        with self._lock:
            return self._history.rows(agent.node, text, self._wall())

    def note_failures(self) -> None:
        with self._lock:
            nodes = {agent.node for agent in self._agents.values()}
            failed = self._failed = {node: why for node, why in self._failed.items() if node in nodes}
        node = min(failed, default="")
        many = f"{count_of(len(failed), 'node')}, such as {node}" if len(failed) > 1 else f"node {node}"
        self._note("figures", f"no figures of {many}: {failed[node]}" if failed else "")
