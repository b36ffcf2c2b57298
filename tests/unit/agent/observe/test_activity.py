"""Totals of what clients with a class did: they never fall, and count nothing twice."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.observe.activity import MAX_REMEMBERED, ActivityLog, ContainerActivity
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.mps.wire import BrokerState, ClientActivity, GaveWayTo, Kernel
from gpushare.process.procfs import TICKS_PER_SECOND
from tests.unit.agent.observed_pods import UUID, pod, uid

PODS = pods_by_cgroup_uid([pod(1), pod(2)])
LATER, EARLIER = 200 * TICKS_PER_SECOND, 50 * TICKS_PER_SECOND
"""When processes started: after the agent looked first, at 100 s, and before."""


def client(launches: int, active: float, pid: int = 1, number: int = 1, **fields: Any) -> ClientActivity:
    values = {"started": LATER, "client_class": "BestEffort", "container": "app"} | fields
    return ClientActivity(pid=pid, pod_uid=uid(number), launches=launches, active_seconds=active, **values)


class Log:
    def __init__(self) -> None:
        self.log = ActivityLog()
        self.tell()

    def tell(self, *clients: ClientActivity) -> None:
        self.log.update(BrokerState(uuid=UUID, heartbeat=0.0, listening=True, activity=list(clients)), 100.0)

    def containers(self) -> list[ContainerActivity]:
        return list(self.log.containers({UUID: "a"}, PODS))

    def totals(self) -> tuple[int, float]:
        [told] = self.containers()
        return told.launches, told.active


def test_processes_of_a_container_count_together_and_stay_when_they_end() -> None:
    log = Log()
    log.tell(client(10, 1.0), client(5, 2.0, pid=2))
    log.tell(client(12, 1.5))
    assert log.totals() == (17, 3.5)
    [told] = log.containers()
    assert told.where == ("team", "pod-1", "app", "a", UUID)


def test_what_was_done_before_the_agent_looked_counts_for_nothing() -> None:
    log = Log()
    log.tell(client(1000, 50.0, started=EARLIER))
    log.tell(client(1010, 51.0, started=EARLIER))
    assert log.totals() == (10, 1.0)


def test_a_broker_that_starts_again_loses_and_doubles_nothing() -> None:
    """Its processes are in no list until they ask again, and their pages go on."""
    log = Log()
    log.tell(client(1000, 50.0))
    log.tell()
    log.tell(client(1500, 60.0))
    assert log.totals() == (1500, 60.0)


def test_another_program_of_a_process_counts_from_zero() -> None:
    log = Log()
    log.tell(client(1000, 50.0))
    log.tell(client(3, 1.0))
    log.tell(client(5, 2.0))
    assert log.totals()[0] == 1005


def test_a_page_that_cannot_be_true_adds_nothing() -> None:
    log = Log()
    log.tell(client(10, 1.0))
    log.tell(client(0, 0.0, fault="launches went back"))
    assert log.totals() == (10, 1.0)


def test_who_gave_way_to_whom_is_told_by_pod() -> None:
    log = Log()
    protected = client(0, 0.0, pid=7, number=2, client_class="Protected")
    to = [GaveWayTo(pid=7, started=LATER, seconds=2.0), GaveWayTo(pid=8, started=LATER, seconds=0.5)]
    log.tell(protected, client(1, 0.0, gave_way_seconds=3.0, gave_way_to=to))
    told = next(item for item in log.containers() if item.client_class == "BestEffort")
    assert told.gave_way == {"team/pod-2": 2.0, "": 1.0}


def test_a_pod_that_is_gone_takes_its_totals_along() -> None:
    log = Log()
    log.tell(client(1, 1.0), client(1, 1.0, pid=2, number=2))
    log.log.keep({UUID}, [uid(2)])
    assert [item.where[1] for item in log.containers()] == ["pod-2"]
    log.log.keep((), [uid(2)])
    assert log.containers() == []


READINGS = st.lists(
    st.lists(st.builds(client, st.integers(0, 10**12), st.floats(0, 1e6), st.integers(1, 3)), max_size=3), max_size=8
)


@given(READINGS)
def test_totals_never_fall_whatever_is_told(readings: list[list[ClientActivity]]) -> None:
    log, before = Log(), (0, 0.0)
    for clients in readings:
        log.tell(*clients)
        now = log.totals() if log.containers() else (0, 0.0)
        assert now[0] >= before[0]
        assert now[1] >= before[1]
        before = now


def test_processes_without_end_take_no_memory_without_end() -> None:
    log = Log()
    for first in range(0, 4 * MAX_REMEMBERED, 64):
        log.tell(*(client(1, 0.0, pid=first + number, longest=[Kernel(name="k", seconds=1.0)]) for number in range(64)))
    assert log.totals()[0] == 4 * MAX_REMEMBERED
    log.tell(client(1, 0.0, pid=0), client(1, 0.0, pid=4 * MAX_REMEMBERED - 1))
    assert log.totals()[0] == 4 * MAX_REMEMBERED + 1, "the first ones are forgotten, the latest are not"
