"""PodResources against a kubelet on a real socket."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from gpushare.agent.podresources.client import PodResources, PodResourcesError, connect
from gpushare.agent.podresources.holdings import HeldDevice, view
from gpushare.agent.proto import podresources_v1_pb2 as messages
from gpushare.agent.rpc.client import RpcChannel
from gpushare.agent.rpc.server import RpcServer
from tests.unit.agent.fake_kubelet import FakeKubelet

DEVICES = messages.ContainerDevices(resource_name="gpushare.dev/a", device_ids=["GPU-1::0", "GPU-1::1"])


@pytest.fixture
async def kubelet() -> AsyncIterator[FakeKubelet]:
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        fake = FakeKubelet(Path(folder))
        await fake.start()
        yield fake
        await fake.stop()


async def test_every_held_id_comes_with_its_container(kubelet: FakeKubelet) -> None:
    container = messages.ContainerResources(name="app", devices=[DEVICES])
    pod = messages.PodResources(name="pod", namespace="team", containers=[container, messages.ContainerResources()])
    kubelet.listed = messages.ListPodResourcesResponse(pod_resources=[pod])
    held = await PodResources(kubelet.pod_resources).held()
    assert held == [
        HeldDevice("team", "pod", "app", "gpushare.dev/a", "GPU-1::0"),
        HeldDevice("team", "pod", "app", "gpushare.dev/a", "GPU-1::1"),
    ]


async def test_of_claims_nvidias_gpus_alone_are_told(kubelet: FakeKubelet) -> None:
    drivers = ("gpu.nvidia.com", "compute-domain.nvidia.com", "gpushare.dev")
    devices = [messages.ClaimResource(driver_name=driver, pool_name="n", device_name="gpu-0") for driver in drivers]
    claim = messages.DynamicResource(claim_name="c", claim_namespace="team", claim_resources=devices)
    container = messages.ContainerResources(name="app", devices=[DEVICES], dynamic_resources=[claim])
    pod = messages.PodResources(name="pod", namespace="team", containers=[container])
    kubelet.listed = messages.ListPodResourcesResponse(pod_resources=[pod])
    held = await PodResources(kubelet.pod_resources).held()
    assert held[2:] == [HeldDevice("team", "pod", "app", "gpu.nvidia.com", "gpu-0")]
    assert view(1.0, [], held).nvidia_claims == {("team", "pod")}


async def test_allocatable_ids_are_told_with_their_resource(kubelet: FakeKubelet) -> None:
    kubelet.allocatable = messages.AllocatableResourcesResponse(devices=[DEVICES])
    allocatable = await PodResources(kubelet.pod_resources).allocatable()
    assert allocatable == {("gpushare.dev/a", "GPU-1::0"), ("gpushare.dev/a", "GPU-1::1")}


async def test_a_kubelet_is_asked_again_after_its_restart(kubelet: FakeKubelet) -> None:
    source = PodResources(kubelet.pod_resources)
    assert await source.held() == []
    await kubelet.stop()
    for _ in range(3):
        with pytest.raises(PodResourcesError, match=r"List at .*kubelet\.sock failed: UNAVAILABLE"):
            await source.held()
    await kubelet.start()
    assert await source.held() == []


async def test_a_kubelet_that_restarts_between_two_questions_answers_both(kubelet: FakeKubelet) -> None:
    source = PodResources(kubelet.pod_resources)
    assert await source.held() == []
    await kubelet.stop()
    await kubelet.start()
    assert await source.held() == []


async def test_a_connection_is_kept_until_a_question_fails(kubelet: FakeKubelet) -> None:
    made: list[Path] = []

    def counted(socket: Path) -> RpcChannel:
        made.append(socket)
        return connect(socket)

    source = PodResources(kubelet.pod_resources, seconds=0.5, connect=counted)
    await source.held()
    await source.allocatable()
    assert len(made) == 1
    kubelet.answer_after = 5.0
    with pytest.raises(PodResourcesError):
        await source.held()
    kubelet.answer_after = 0.0
    await source.held()
    assert len(made) == 2


async def test_a_connection_that_was_kept_can_be_closed_and_is_made_anew(kubelet: FakeKubelet) -> None:
    made: list[RpcChannel] = []

    def kept(socket: Path) -> RpcChannel:
        made.append(connect(socket))
        return made[-1]

    source = PodResources(kubelet.pod_resources, connect=kept)
    source.close()
    await source.held()
    connection = await made[0].__connect__()
    source.close()
    assert connection.connection.is_closing()
    await source.held()
    assert len(made) == 2


async def test_a_silent_kubelet_is_an_error_within_the_time_limit(kubelet: FakeKubelet) -> None:
    kubelet.answer_after = 5.0
    with pytest.raises(PodResourcesError, match="DEADLINE_EXCEEDED"):
        await PodResources(kubelet.pod_resources, seconds=0.2).held()


class Bytes:
    """A message of any bytes."""

    def __init__(self, content: bytes = b"") -> None:
        self._content = content

    def SerializeToString(self) -> bytes:
        return self._content


class Garbage:
    """A kubelet that answers every question with `answer`, or with an error where that is None."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer

    async def _answered(self, stream: Any) -> None:
        if self._answer is None:
            raise GRPCError(Status.INTERNAL, "checkpoint is corrupted")
        await stream.send_message(Bytes(self._answer))

    def __mapping__(self) -> dict[str, Handler]:
        handler = Handler(self._answered, Cardinality.UNARY_UNARY, Bytes, Bytes)
        return {f"/v1.PodResourcesLister/{question}": handler for question in ("List", "GetAllocatableResources")}


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, "INTERNAL: checkpoint is corrupted"),
        (b"\xff\xff\xff garbage", "cannot be read"),
        (b"\x0a\x7f", "cannot be read"),
    ],
)
async def test_what_is_no_answer_to_either_question_is_an_error(answer: bytes | None, sentence: str) -> None:
    """Any other error would end the agent."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        socket = Path(folder) / "kubelet.sock"
        server = RpcServer([Garbage(answer)])
        await server.start(socket)
        source = PodResources(socket)
        for question in (source.held, source.allocatable):
            with pytest.raises(PodResourcesError, match=sentence):
                await question()
        await server.stop(None)


async def test_a_nodes_pods_may_have_as_many_containers_as_the_api_takes(kubelet: FakeKubelet) -> None:
    """Else a few tenants could keep the agent from knowing who holds what."""
    crowd = messages.PodResources(name="crowd", namespace="team")
    for number in range(4600):
        crowd.containers.add(name=f"{number:063d}")
    holder = messages.PodResources(
        name="pod", namespace="team", containers=[messages.ContainerResources(name="app", devices=[DEVICES])]
    )
    kubelet.listed = messages.ListPodResourcesResponse(pod_resources=[*[crowd] * 110, holder])
    held = await PodResources(kubelet.pod_resources, seconds=30).held()
    assert [device.pod for device in held] == ["pod", "pod"]
