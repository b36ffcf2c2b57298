"""Preparing and unpreparing claims, against a real directory."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare.agent.dra.allocation import ClaimRefused
from gpushare.agent.dra.claims import ClaimPreparer, ClaimSources
from gpushare.agent.dra.prepared import PreparedClaims
from gpushare.agent.reconcile.assignments import GpuStage
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api.conditions import DaemonReason
from gpushare.kube.client import NAMESPACES, PODS, RESOURCE_CLAIMS, Object
from tests.unit.agent.decided_gpus import READY, decided
from tests.unit.agent.dra.objects import POD_UID, UID, claim, pod, result, share
from tests.unit.fake_kube import FakeKube

STARTING = Readiness(DaemonReason.STARTING, "the server is not there yet")
SHARE_GPU = ("a", "GPU-0")


class Node:
    """One GPU of share a, as the state of the code under test; tests change what is known of it."""

    def __init__(self, directory: Path) -> None:
        self.kube = FakeKube()
        self.kube.put(NAMESPACES, {"metadata": {"name": "ns", "labels": {"team": "ml"}}})
        self.kube.put(RESOURCE_CLAIMS, claim())
        self.gpu: GpuDecision | None = decided(share=share(), readiness=READY)
        self.pods: dict[str, Object] = {POD_UID: pod()}
        self.by_cdi = True
        self.unreachable = False
        """Tells whether pods cannot be read."""
        self.tick_due = asyncio.Event()
        self.asked = asyncio.Event()
        """Set once the GPU was asked for."""
        self.directory = directory
        self.restart()

    def restart(self) -> None:
        """The agent."""
        self.claims = PreparedClaims(self.directory)
        sources = ClaimSources("n", self.claims, self.decisions, lambda: self.by_cdi, lambda: None, self.tick_due.set)
        self.preparer = ClaimPreparer(self.kube, sources, ready_seconds=0.4, ready_poll_seconds=0.05)  # type: ignore[arg-type]

    def decisions(self) -> dict[str, GpuDecision]:
        self.asked.set()
        return {"GPU-0": self.gpu} if self.gpu else {}

    async def prepare(self, name: str = "c", uid: str = UID) -> Any:
        for known in self.kube.all(PODS):
            self.kube.remove(PODS, known["metadata"]["name"])
        for restored in self.pods.values():
            self.kube.put(PODS, restored)
        if self.unreachable:
            self.kube.fail("get pods", TimeoutError("no answer"))
        return await self.preparer.prepare("ns", name, uid)

    def specs(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir()) if self.directory.exists() else []


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "cdi")


async def test_a_claim_is_held_from_preparation_until_it_is_unprepared(node: Node) -> None:
    prepared = await node.prepare()
    assert (prepared.parts[0].uuid, prepared.parts[0].grant.threads) == ("GPU-0", 10)
    assert node.claims.holdings() == {SHARE_GPU: frozenset({0})}
    assert node.claims.pods(node.pods.values()) == {SHARE_GPU: frozenset({"ns/p"})}
    assert node.claims.containers(node.pods.values())["ns", "p", "app"].grant == prepared.parts[0].grant
    assert node.tick_due.is_set()
    node.tick_due.clear()
    node.preparer.unprepare(UID)
    assert node.tick_due.is_set()
    assert (node.claims.holdings(), node.specs(), node.claims.count) == ({}, [], 1)
    node.preparer.unprepare(UID)


async def test_preparing_twice_is_preparing_once_even_while_the_gpu_is_not_ready(node: Node) -> None:
    first = await node.prepare()
    node.gpu = decided(share=share(), readiness=STARTING)
    assert await node.prepare() == first
    assert node.claims.count == 1


async def test_a_restarted_agent_knows_what_is_prepared_and_can_give_it_up(node: Node) -> None:
    first = await node.prepare()
    node.restart()
    assert node.claims.holdings() == {SHARE_GPU: frozenset({0})}
    assert await node.prepare() == first
    node.preparer.unprepare(UID)
    assert node.specs() == []


async def test_a_claim_that_was_allocated_anew_is_prepared_anew(node: Node) -> None:
    await node.prepare()
    anew = result(shareID="other", consumedCapacity={"threads": "30", "memory": "4Gi"})
    node.kube.put(RESOURCE_CLAIMS, claim(anew))
    assert (await node.prepare()).parts[0].grant.threads == 30
    assert node.claims.holdings() == {SHARE_GPU: frozenset({0})}


async def test_a_claim_that_the_next_pod_has_by_now_is_prepared_for_that_pod(node: Node) -> None:
    await node.prepare()
    successor = "88888888-2222-3333-4444-555555555555"
    users = [{"resource": "pods", "name": "p", "uid": successor}]
    node.kube.put(RESOURCE_CLAIMS, claim(reservedFor=users))
    node.pods = {successor: pod() | {"metadata": {"name": "p", "namespace": "ns", "uid": successor}}}
    assert (await node.prepare()).pod_uid == successor


async def test_each_part_keeps_its_number_while_others_come_and_go(node: Node) -> None:
    uids = [f"00000000-0000-0000-0000-{number:012d}" for number in range(3)]
    for number, uid in enumerate(uids):
        node.kube.put(RESOURCE_CLAIMS, claim(name=f"c{number}", uid=uid))
        node.pods[POD_UID] = pod(claims={"gpu": f"c{number}"})
        await node.prepare(f"c{number}", uid)
    node.preparer.unprepare(uids[0])
    assert node.claims.holdings() == {SHARE_GPU: frozenset({1, 2})}
    node.pods[POD_UID] = pod()
    await node.prepare()
    assert node.claims.holdings() == {SHARE_GPU: frozenset({0, 1, 2})}


def lose_gpu(node: Node) -> None:
    node.gpu = None


def leave(node: Node) -> None:
    node.gpu = decided(share=share(), stage=GpuStage.LEAVE)


def not_ready(node: Node) -> None:
    node.gpu = decided(share=share(), readiness=STARTING)


def without_cdi(node: Node) -> None:
    node.gpu = decided(share=share())
    node.by_cdi = False


def without_share(node: Node) -> None:
    node.gpu = decided()


def without_pod(node: Node) -> None:
    node.pods.clear()


def made_again(node: Node) -> None:
    node.pods[POD_UID]["metadata"]["uid"] = "99999999-0000-0000-0000-000000000000"


def unreachable(node: Node) -> None:
    node.unreachable = True


def without_claim(node: Node) -> None:
    node.kube.remove(RESOURCE_CLAIMS, "c")


def forbid(node: Node) -> None:
    node.gpu = decided(share=share(allowedNamespaces={"matchLabels": {"team": "web"}}), readiness=READY)


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (lose_gpu, "which no GpuShare has any more: delete the pod"),
        (leave, "which no GpuShare has any more: delete the pod"),
        (not_ready, "GPU GPU-0: Starting: the server is not there yet"),
        (without_cdi, "claims need CDI"),
        (without_share, "the GpuShare of GPU GPU-0 is not known here yet"),
        (without_pod, "its pod p is gone"),
        (made_again, "its pod p is gone"),
        (unreachable, "its pod p cannot be read: no answer"),
        (without_claim, "cannot be read: NotFound"),
        (forbid, "does not allow namespace ns"),
    ],
)
async def test_what_cannot_be_prepared_is_refused_and_leaves_nothing(
    node: Node, trouble: Callable[[Node], None], words: str
) -> None:
    trouble(node)
    with pytest.raises(ClaimRefused) as refused:
        await node.prepare()
    assert words in str(refused.value)
    assert (node.claims.holdings(), node.specs(), node.tick_due.is_set()) == ({}, [], False)


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", UID.upper() + "x"])
async def test_only_a_uid_becomes_part_of_a_files_name(node: Node, uid: str) -> None:
    with pytest.raises(ClaimRefused, match="which is none"):
        await node.prepare(uid=uid)
    node.preparer.unprepare(uid)


async def test_a_claim_waits_until_its_gpu_is_ready(node: Node) -> None:
    not_ready(node)
    waiting = asyncio.create_task(node.prepare())
    await node.asked.wait()
    assert not waiting.done()
    node.gpu = decided(share=share(), readiness=READY)
    assert (await waiting).uid == UID
