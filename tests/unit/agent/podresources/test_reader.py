"""A kubelet that does not know its pods yet is not believed."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.agent.podresources.holdings import HeldDevice, KubeletView, ShareGpu
from gpushare.agent.podresources.reader import FORGOTTEN_SECONDS, KubeletReader, validate_listing

RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
WAITING: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
TERMINATED: dict[str, Any] = {"terminated": {"exitCode": 0}}
SLOT = {"gpushare.dev/a": "1"}
ONE = {"gpushare.dev/a": 1}
TWO = {"gpushare.dev/a": 2}


def container(limits: dict[str, str] | None = None, name: str = "app", **body: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": SLOT if limits is None else limits}, **body}


def pod(
    state: dict[str, Any], *containers: dict[str, Any], phase: str = "Running", init: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    """All of its containers are in the same state."""
    app = containers or (container(),)
    return {
        "metadata": {"namespace": "ns", "name": "pod", "uid": "u"},
        "spec": {"containers": list(app), "initContainers": list(init)},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": item["name"], "state": state} for item in app],
            "initContainerStatuses": [{"name": item["name"], "state": state} for item in init],
        },
    }


YOUNG = {"metadata": {"name": "pod"}, "spec": {"containers": [container()]}, "status": {"phase": "Pending"}}
BY_CLAIM = pod(RUNNING)
BY_CLAIM["status"]["extendedResourceClaimStatus"] = {
    "resourceClaimName": "c",
    "requestMappings": [{"containerName": "app", "resourceName": "gpushare.dev/a", "requestName": "r"}],
}
PLAIN_INIT = pod(RUNNING, container({}), init=(container(name="init"),))
SIDECAR = pod(RUNNING, container({}), init=(container(name="side", restartPolicy="Always"),))


@pytest.mark.parametrize(
    ("sentence", "listed", "pods", "misses"),
    [
        ("nothing listed and no pods: an empty node", {}, [], False),
        ("nothing listed although a container runs", {}, [pod(RUNNING)], True),
        ("its slot listed", ONE, [pod(RUNNING)], False),
        ("one slot listed for two pods that run", ONE, [pod(RUNNING), pod(RUNNING)], True),
        ("one slot listed for two containers of one pod", ONE, [pod(RUNNING, container(), container(name="b"))], True),
        ("two slots listed for two pods that run", TWO, [pod(RUNNING)] * 2, False),
        ("more slots than running containers: some start, some have just ended", ONE, [], False),
        ("a slot of another share makes up for none", {"gpushare.dev/b": 1}, [pod(RUNNING)], True),
        ("a container that waits may have no slot yet", {}, [pod(WAITING)], False),
        ("a container that has ended may have none any more", {}, [pod(TERMINATED)], False),
        ("a pod whose status the kubelet has not written yet", {}, [YOUNG], False),
        ("a pod that succeeded holds nothing", {}, [pod(RUNNING, phase="Succeeded")], False),
        ("nor does one that failed", {}, [pod(RUNNING, phase="Failed")], False),
        ("a running container that asks for no slot", {}, [pod(RUNNING, container({"nvidia.com/gpu": "1"}))], False),
        ("a slot that the scheduler made a claim of", {}, [BY_CLAIM], False),
        ("nor for none of them", {}, [pod(RUNNING, container({"gpushare.dev/a": "0"}))], False),
        ("our own MPS pods hold no slot", {}, [pod(RUNNING, container({"internal.gpushare.dev/mps": "1"}))], False),
        ("a running sidecar is listed", {}, [SIDECAR], True),
        ("an ordinary init container never is", {}, [PLAIN_INIT], False),
    ],
)  # fmt: skip
def test_what_a_reading_misses(sentence: str, listed: dict[str, int], pods: list[dict[str, Any]], misses: bool) -> None:
    assert (validate_listing(listed, pods) is not None) is misses, sentence


def test_the_sentence_names_the_resource_and_both_numbers() -> None:
    problem = validate_listing(ONE, [pod(RUNNING), pod(RUNNING)])
    assert problem is not None
    assert "lists gpushare.dev/a of 1 container, but 2 of this node" in problem


class Source:
    """A kubelet that lists what a test sets."""

    def __init__(self) -> None:
        self.listed: list[HeldDevice] = []

    async def held(self) -> list[HeldDevice]:
        return self.listed

    async def allocatable(self) -> set[tuple[str, str]]:
        return set()


HELD = HeldDevice("ns", "pod", "app", "gpushare.dev/a", "GPU-0::0")


async def test_an_empty_list_while_containers_run_replaces_no_earlier_reading() -> None:
    source, pods = Source(), [pod(RUNNING)]
    reader = KubeletReader(source, lambda: 1.0, lambda: pods)
    source.listed = [HELD]
    await reader.poll()
    known = reader.view
    source.listed, pods = [], [pod(RUNNING), pod(RUNNING)]  # one came since
    await reader.poll()
    assert reader.view is known
    assert "of 0 containers, but 2" in reader.error
    source.listed = [HELD, replace(HELD, pod="second", id="GPU-0::1")]
    await reader.poll()
    assert reader.error == ""


async def test_an_empty_list_is_believed_until_the_pods_are_known() -> None:
    source, pods = Source(), list[dict[str, Any]]()
    known = False
    reader = KubeletReader(source, lambda: 1.0, lambda: pods if known else None)
    await reader.poll()
    assert reader.view is not None
    known, pods = True, [pod(RUNNING)]
    await reader.poll()
    assert reader.view is None, "who runs would count as holding nothing"
    source.listed = [HELD]
    await reader.poll()
    assert reader.view is not None


async def test_a_list_that_agrees_with_the_pods_stays() -> None:
    source, pods = Source(), list[dict[str, Any]]()
    known = False
    reader = KubeletReader(source, lambda: 1.0, lambda: pods if known else None)
    source.listed = [HELD]
    await reader.poll()
    first = reader.view
    known, pods, source.listed = True, [pod(RUNNING)], []
    await reader.poll()
    assert reader.view is first


async def test_a_list_that_lags_for_a_moment_is_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    source, now = Source(), [100.0]
    reader = KubeletReader(source, lambda: now[0], lambda: [pod(RUNNING)])
    for moment, lines in ((100.0, 0), (109.9, 0), (110.0, 1), (115.0, 1)):
        now[0] = moment
        await reader.poll()
        assert "of 0 containers, but 1" in reader.error, "the condition says so at once"
        assert sum("no new view" in record.message for record in caplog.records) == lines
    source.listed = [HELD]
    await reader.poll()
    source.listed, now[0] = [], 200.0
    await reader.poll()
    assert sum("no new view" in record.message for record in caplog.records) == 1, "it counts anew"


class Node:
    """A node whose kubelet lists what a test sets, at the times that the test says."""

    def __init__(self, granted: dict[tuple[str, str, str], ShareGpu] | None = None) -> None:
        self.source, self.pods, self.now = Source(), list[dict[str, Any]](), 1000.0
        self.reader = KubeletReader(self.source, lambda: self.now, lambda: self.pods, granted=lambda: granted or {})

    async def view(self, after: float = 1.0) -> KubeletView | None:
        self.now += after
        await self.reader.poll()
        return self.reader.view

    async def settled(self) -> KubeletView:
        """Once the kubelet has had its time."""
        await self.view()
        view = await self.view(FORGOTTEN_SECONDS)
        assert view is not None
        return view


def named(name: str) -> dict[str, Any]:
    made = pod(RUNNING)
    return made | {"metadata": made["metadata"] | {"name": name}}


def device(name: str, slot: int) -> HeldDevice:
    return HeldDevice("ns", name, "app", "gpushare.dev/a", f"GPU-0::{slot}")


def slots(view: KubeletView | None) -> dict[str, list[int]]:
    """The slots by pod."""
    assert view is not None
    return {
        name: sorted(number for _, _, number in held)
        for name in {pod for holders in view.holders.values() for _, pod, _ in holders}
        if (held := [slot for slot, holders in view.holders.items() if ("ns", name, "app") in holders])
    }


HERE: ShareGpu = ("a", "GPU-0")


async def test_a_kubelet_that_forgets_is_united_with_the_known_holders() -> None:
    node = Node()
    node.pods, node.source.listed = [named("old"), named("older")], [device("old", 0), device("older", 3)]
    before = await node.view()
    node.source.listed = []
    assert await node.view() is before
    assert await node.view(FORGOTTEN_SECONDS - 10) is before, "it may still learn of its pods"
    assert node.reader.error
    view = await node.view(20)
    assert view is not None
    assert slots(view) == {"old": [0], "older": [3]}
    assert (view.held, view.forgotten) == ({HERE: {0, 3}}, {HERE: {0, 3}})
    assert node.reader.error == ""
    assert "2 pods with slots (its file kubelet_internal_checkpoint): ns/old, ns/older." in node.reader.forgotten


async def test_a_slot_that_was_given_again_is_another_one_for_its_first_holder() -> None:
    node = Node()
    node.pods, node.source.listed = [named("old"), named("older")], [device("old", 0), device("older", 1)]
    await node.view()
    node.source.listed = [device("new", 0)]
    view = await node.settled()
    assert slots(view) == {"new": [0], "old": [2], "older": [1]}
    assert view.forgotten == {HERE: {1, 2}}


async def test_one_old_pod_does_not_lose_its_slot_to_a_count_that_agrees() -> None:
    node = Node()
    node.pods, node.source.listed = [named("old")], [device("old", 0)]
    before = await node.view()
    node.source.listed = [device("new", 0)]  # of which the API server does not know yet that it runs
    assert await node.view() is before
    assert slots(await node.settled()) == {"new": [0], "old": [1]}


async def test_a_restarted_agent_knows_the_holders_by_what_it_wrote() -> None:
    node = Node({("ns", "old", "app"): HERE, ("ns", "gone", "app"): HERE})
    node.pods = [named("old")]
    assert await node.view() is None
    view = await node.settled()
    assert (slots(view), view.forgotten) == ({"old": [0]}, {HERE: {0}})


async def test_of_a_holder_whose_gpu_nobody_knows_nothing_is_guessed() -> None:
    node = Node()
    node.pods = [named("old")]
    await node.view()
    assert await node.view(FORGOTTEN_SECONDS * 2) is None
    assert "of 0 containers, but 1" in node.reader.error


async def test_pods_that_were_made_again_are_named_no_more() -> None:
    node = Node()
    node.pods, node.source.listed = [named("old"), named("older")], [device("old", 0), device("older", 1)]
    await node.view()
    node.source.listed = []
    await node.settled()
    node.pods, node.source.listed = [named("older"), named("again")], [device("again", 2)]
    view = await node.view()
    assert slots(view) == {"older": [1], "again": [2]}
    assert "1 pod with slots" in node.reader.forgotten
    node.pods = [named("again")]
    view = await node.view()
    assert (slots(view), node.reader.forgotten) == ({"again": [2]}, "")
