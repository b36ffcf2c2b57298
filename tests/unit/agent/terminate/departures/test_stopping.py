"""What the brokers write of containers that are being stopped, and what the agent makes of it."""

from typing import Any

import pytest

from gpushare.agent.terminate.kubelet_kills import StopWatcher
from gpushare.mps.wire import FRESH_SECONDS, BrokerState, StoppingContainer
from tests.unit.agent.departing_pods import CONTAINER, pod, uid

NOW = 1000.0
PLACES = {("team", "pod-1", "app"): ("inference", "GPU-0"), ("team", "pod-2", "app"): ("inference", "GPU-1")}
STOP = StoppingContainer(pod_uid=uid(1), container="app", container_id=CONTAINER, at=NOW)


def told(number: int = 1, container: str = "app", at: float = NOW) -> StoppingContainer:
    return StoppingContainer(pod_uid=uid(number), container=container, container_id=CONTAINER, at=at)


def state(*stopping: StoppingContainer, uuid: str = "GPU-0") -> BrokerState:
    return BrokerState(uuid=uuid, heartbeat=NOW, listening=True, stopping=list(stopping))


class Scene:
    """A node with pods 1 and 2, on GPU-0 and GPU-1."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, str, float]] = []
        self.written: list[BrokerState] = []
        pods = {uid(number): pod(number) for number in (1, 2)}
        self.watcher = StopWatcher(self._changed, lambda: pods, lambda: PLACES, self._report, lambda: NOW)

    def _changed(self) -> list[BrokerState]:
        written, self.written = self.written, []
        return written

    def _report(self, stopped: Any, stop: StoppingContainer) -> bool:
        self.reported.append((stopped["metadata"]["name"], stop.container_id, stop.at))
        return True

    async def read(self, *states: BrokerState) -> None:
        self.written = list(states)
        await self.watcher.follow()


async def test_a_stop_is_reported_once_however_often_its_file_is_written() -> None:
    scene = Scene()
    for _ in range(3):
        await scene.read(state(STOP))
    assert scene.reported == [("pod-1", CONTAINER, NOW)]


async def test_a_later_stop_of_the_same_container_is_news() -> None:
    scene = Scene()
    await scene.read(state(STOP))
    await scene.read(state(StoppingContainer(pod_uid=uid(1), container="app", container_id=CONTAINER, at=NOW + 1)))
    assert [at for _, _, at in scene.reported] == [NOW, NOW + 1]


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(state(STOP, uuid="GPU-1"), id="by the broker of a GPU that the container has not"),
        pytest.param(state(told(number=9)), id="of an unknown pod"),
        pytest.param(state(told(container="side")), id="of a container without a part"),
        pytest.param(state(told(at=NOW - FRESH_SECONDS - 1)), id="long ago"),
        pytest.param(state(told(at=NOW + 3600)), id="in the future"),
    ],
)
async def test_what_no_broker_of_the_container_says_now_ends_nobody(written: BrokerState) -> None:
    scene = Scene()
    await scene.read(written)
    assert scene.reported == []
