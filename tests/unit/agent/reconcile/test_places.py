"""Places on a GPU: what the node tells of them, and when a new MPS pod would end no client."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from gpushare.agent.podresources.holdings import KubeletView
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.decision import DecisionInput, assess
from gpushare.agent.reconcile.lifecycle import wanted_mode
from gpushare.agent.reconcile.places import gpu_places, nobody_has_a_place
from gpushare.api.compute_mode import ComputeMode
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import GpuShare
from gpushare.kube.client import GPU_SHARES
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import gpu_dir
from gpushare.mps.wire import BrokerState, DaemonState, DesiredDaemon, PlaceHolder, PlacesInUse, QueuedContainer
from tests.unit.agent.fake_node import SHARE, FakeNode
from tests.unit.agent.observed_pods import UUID, pod, share, uid
from tests.unit.agent.reconcile.test_decision import GIVEN, LIMITS
from tests.unit.agent.reconcile.test_shown_grant import has_fronts

NOW, SHUT = 1000.0, 990.0
HOLDER = PlaceHolder(pod_uid=uid(1), container="app", since=10.0)
EMPTY = PlacesInUse(limit=2)
BROKER = BrokerState(uuid=UUID, heartbeat=NOW - 1, listening=True, places=EMPTY)
STATE = DaemonState(uuid=UUID, share="a", heartbeat=NOW - 1, reason=DaemonReason.READY)
QUEUED = share(clients=share().clients.wire() | {"queue": {"slots": 8}})


def files(
    broker: BrokerState | None = BROKER, state: DaemonState | None = STATE, root: Path = Path("/none")
) -> DaemonFiles:
    wanted = DesiredDaemon(uuid=UUID, share="a", limits=LIMITS)
    return DaemonFiles(gpu_dir(root, UUID), wanted, state, broker, True)


def test_who_has_a_place_and_who_waits_is_named_in_order() -> None:
    queue = [
        QueuedContainer(pod_uid=uid(number), container="app", since=1.0, position=position)
        for position, number in enumerate((3, 2, 9), 1)
    ]
    broker = structs.replace(BROKER, places=structs.replace(EMPTY, held=[HOLDER]), queue=queue, waiting=3)
    told = gpu_places(broker, "a", pods_by_cgroup_uid([pod(1), pod(2), pod(3)]))
    assert told is not None
    assert (told.limit, told.used, told.waiting) == (2, 1, 3)
    assert (told.held, told.queue) == (["team/pod-1/app"], ["team/pod-3/app", "team/pod-2/app"])
    assert gpu_places(structs.replace(BROKER, places=None), "a", {}) is None
    assert gpu_places(None, "a", {}) is None


@pytest.mark.parametrize(
    ("sentence", "item", "shut", "expected"),
    [
        ("shut, told afterwards, nobody there", files(), SHUT, True),
        ("a GPU that lets somebody in", files(), None, False),
        ("what the broker wrote before proves nothing", files(), NOW - 1, False),
        ("nor what it wrote before it can have read that", files(), NOW - 5, False),
        ("nor what the supervisor wrote before", files(state=structs.replace(STATE, heartbeat=SHUT)), SHUT, False),
        ("a broker that writes no more",
         files(broker=structs.replace(BROKER, heartbeat=NOW - 20), state=structs.replace(STATE, heartbeat=NOW - 20)),
         NOW - 30, False),
        ("who has a place", files(broker=structs.replace(BROKER, places=structs.replace(EMPTY, held=[HOLDER]))), SHUT,
         False),
        ("a context, whosever it is", files(state=structs.replace(STATE, contexts=1)), SHUT, False),
        ("a broker of a share without a queue", files(broker=structs.replace(BROKER, places=None)), SHUT, False),
        ("without a supervisor", files(state=None), SHUT, False),
    ],
)  # fmt: skip
def test_nobody_has_a_place_where(sentence: str, item: DaemonFiles, shut: float | None, expected: bool) -> None:
    assert nobody_has_a_place(item, shut, NOW) is expected, sentence


@pytest.mark.parametrize(
    ("sentence", "assignment", "gpu_share", "drained"),
    [
        ("a new MPS pod waits for no container without a place", {"paused": True}, QUEUED, True),
        ("without a queue it waits for every container", {"paused": True}, share(), False),
        ("a GPU that leaves its share waits for its slots", {"draining": True}, QUEUED, False),
        ("a GPU that serves is not drained", {}, QUEUED, False),
    ],
)
def test_of_a_gpu_whose_containers_only_wait(
    sentence: str, assignment: dict[str, bool], gpu_share: GpuShare, drained: bool
) -> None:
    view = KubeletView(NOW, {}, {("a", UUID): frozenset({0, 1})})
    given: DecisionInput = replace(
        GIVEN,
        now=NOW,
        assignments=(Assignment(uuid=UUID, share="a", **assignment),),
        shares={"a": gpu_share},
        on_disk={UUID: files()},
        kubelet=view,
        withdrawn_at={UUID: NOW - 5},
        shut_since={UUID: SHUT},
    )
    assert assess(given)[UUID].drained is drained, sentence


@pytest.mark.parametrize(
    ("has_queue", "state", "mode"),
    [
        (True, structs.replace(STATE, stopped=True), ComputeMode.PROHIBITED),
        (True, STATE, ComputeMode.EXCLUSIVE_PROCESS),
        (True, None, ComputeMode.EXCLUSIVE_PROCESS),
        (False, structs.replace(STATE, stopped=True), ComputeMode.EXCLUSIVE_PROCESS),
    ],
)
def test_between_two_mps_pods_no_process_takes_the_gpu_past_them(
    has_queue: bool, state: DaemonState | None, mode: ComputeMode
) -> None:
    assert wanted_mode(GpuPlan(UUID, "a", GpuStage.DRAIN, LIMITS, has_queue=has_queue), state) is mode


def tell_places(node: FakeNode, *held: PlaceHolder) -> None:
    path = gpu_dir(node.root, "GPU-0").broker_state
    broker = read_model(path, BrokerState).value
    assert broker is not None
    write_model(path, structs.replace(broker, places=PlacesInUse(limit=4, held=list(held))))


async def test_for_a_new_mps_pod_the_gpu_is_shut_and_drained_with_slots_held(node: FakeNode) -> None:
    has_fronts(node)
    await node.serving()
    clients = {**SHARE["spec"]["clients"], "queue": {"slots": 8}}
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": clients}})
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::0")}
    await node.until(lambda: len(node.kubelet.ids()) == 12)
    tell_places(node, HOLDER)
    grants = gpu_dir(node.root, "GPU-0").grants
    node.kube.assign({"uuid": "GPU-0", "share": "a", "paused": True, "waitingSince": "2026-01-01T00:00:00Z"})
    await node.until(lambda: "is about to be replaced" in grants.read_text())
    await node.until(lambda: node.kubelet.ids() == ["GPU-0::0"])
    await node.ticks(2)
    assert not node.daemon().get("drained")
    tell_places(node)
    await node.until(lambda: node.daemon().get("drained"))
    assert node.status()["places"][0]["used"] == 0
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    await node.until(lambda: '"closed":""' in grants.read_text())
    await node.until(lambda: not node.daemon().get("drained"))
