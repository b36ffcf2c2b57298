"""Slots are counted by the scheduler and the kubelet themselves: never one too many, at no moment."""

import time
from collections import Counter, defaultdict
from datetime import datetime

import pytest

from gpushare.api.names import STARTUP_TAINTS
from localcluster.cluster import processes
from localcluster.kubectl import Object
from tests.cluster.harness import NODE, PATIENCE, Harness, Tenant, has_container, is_rejected, wait_until

GPUS = 2
FULL_SECONDS = 25
"""That a pod stays while the other slots of its share are filled."""
IN_FORCE_SECONDS = 10.0
"""The wait after a share was changed: containers that were let start before have started by then, on a busy machine
too."""


def busiest_gpu(tenant: Tenant, names: list[str]) -> int:
    return max(Counter(tenant.events_of(name, "limits")[0]["observed"]["uuid"] for name in names).values())


def test_eight_pods_start_on_one_gpu_and_the_ninth_waits_for_a_slot(harness: Harness) -> None:
    with harness.share("one", per_node=1, per_gpu=8) as share, harness.namespace() as tenant:
        share.wait_capacity(8)
        names = tenant.neighbours("one", 8)
        for name in names:
            seen = tenant.events_of(name, "limits")[0]
            assert seen["problems"] == []
            assert (seen["granted"]["threads"], seen["granted"]["memory"]) == (25, 8 << 30)
            assert seen["observed"]["sms"] == 32
        assert busiest_gpu(tenant, names) == 8

        tenant.start(tenant.pod("ninth", "one", "depart"))
        message = wait_until("the ninth is unschedulable", lambda: tenant.unscheduled_message("ninth"))
        assert "Insufficient gpushare.dev/one" in message

        tenant.delete_pods(names[0])
        tenant.wait_event("ninth", "started", seconds=20)


@pytest.mark.parametrize(("placement", "on_one_gpu"), [("Spread", 1), ("Pack", 2)])
def test_two_clients_get_two_gpus_or_one_as_their_share_says(harness: Harness, placement: str, on_one_gpu: int) -> None:
    clients = {"perGpu": 8, "threads": {"default": 25, "max": 50}, "memory": {"default": "8Gi"}}
    with harness.share("placed", clients=clients | {"placement": placement}) as share, harness.namespace() as tenant:
        share.wait_capacity(8 * GPUS)
        assert busiest_gpu(tenant, tenant.neighbours("placed", 2)) == on_one_gpu


def test_a_nodes_start_up_taint_goes_once_its_daemon_is_verified(harness: Harness) -> None:
    """The node is tainted while the share's daemon starts, as a new node would be."""
    taint = f"{STARTUP_TAINTS[0]}=:NoSchedule"
    with harness.share("early", per_node=1, per_gpu=2, ready=False):
        wait_until(
            "a GPU",
            lambda: "early" in {assignment["share"] for assignment in harness.gpu_node()["spec"]["assignments"]},
            30,
        )
        harness.kubectl("taint", "node", NODE, taint, "--overwrite")
        wait_until("no start-up taint", lambda: not _startup_taints(harness), 90)
        daemons = {daemon["share"]: daemon["ready"] for daemon in harness.gpu_node()["status"]["daemons"]}
        assert daemons.get("early")
        assert harness.capacity("early") == 2


def _startup_taints(harness: Harness) -> list[str]:
    taints = harness.kubectl.get("node", NODE)["spec"].get("taints", [])
    return [taint["key"] for taint in taints if taint["key"] in STARTUP_TAINTS]


def test_a_share_that_shrinks_from_eight_to_four_bounds_new_pods_alone(harness: Harness) -> None:
    with harness.share("shrink", per_node=1, per_gpu=8) as share, harness.namespace() as tenant:
        share.wait_capacity(8)
        names = tenant.neighbours("shrink", 8)
        share.apply(per_node=1, per_gpu=4)
        share.wait_ready()
        assert all(tenant.events_of(name, "limits") for name in names)
        assert len(tenant.running()) == 8, "shrinking ended a client"

        # The pods on the low slots go, so that the four left hold high ones: still no fifth may start.
        tenant.delete_pods(*names[:4])
        share.wait_capacity(4)
        tenant.start(*(tenant.pod(f"late-{number}", "shrink", "depart") for number in range(2)))
        deadline = time.monotonic() + 6
        while time.monotonic() < deadline:
            assert len(tenant.running()) == 4
            time.sleep(0.3)
        tenant.delete_pods(names[4])
        late = ("late-0", "late-1")
        wait_until("a freed slot is taken", lambda: any(tenant.events_of(name, "started") for name in late), 45)
        assert len(tenant.running()) == 4


@pytest.mark.long
def test_fifty_pods_get_through_and_never_exceed_slots_that_shrink(harness: Harness) -> None:
    """Never sixteen slots nor eight on one GPU at first; then the share shrinks, and so does the kubelet's offer."""
    kubelet = processes.components(harness.layout)["kubelet"].pid
    with harness.share("wave", per_gpu=8) as share, harness.namespace() as tenant:
        share.wait_capacity(8 * GPUS)
        # The first ones stay until all slots are in use, on a slow machine too.
        seconds = [FULL_SECONDS if n < 8 * GPUS else 3 + n % 4 for n in range(50)]
        batch = [tenant.pod(f"p{n}", "wave", "limits", "--hold", str(hold), grace=1) for n, hold in enumerate(seconds)]
        tenant.start(*batch)
        assert watch(harness, tenant, "wave", 13, slots=8 * GPUS) == 8 * GPUS, "the slots were never all in use"
        share.apply(per_gpu=4)
        in_force = time.time() + IN_FORCE_SECONDS
        wait_until("all have succeeded", lambda: all_succeeded(tenant, batch), 300, lambda: phases(tenant))

        lives = defaultdict(list)
        for pod in tenant.pods():
            gpu = tenant.events_of(pod["metadata"]["name"], "limits")[0]["observed"]["uuid"]
            lives[gpu].append(life(pod))
        assert [crowded(spans, 4, in_force) for spans in lives.values()] == [[], []]
        assert any(start > in_force for spans in lives.values() for start, _ in spans), "none started after the change"
    assert processes.components(harness.layout)["kubelet"].pid == kubelet, "the kubelet was started again"


def watch(harness: Harness, tenant: Tenant, share: str, pods: int, slots: int) -> int:
    """Until so many pods have succeeded. Returns the most with a container at once; fails where a bound is broken."""
    most, end = 0, time.monotonic() + 150 * PATIENCE
    while True:
        listed = tenant.pods()
        running = [pod for pod in listed if has_container(pod)]
        most = max(most, len(running))
        assert len(running) <= slots
        assert max(harness.held_by_gpu(share).values(), default=0) <= slots // GPUS
        failed = [pod["metadata"]["name"] for pod in listed if pod["status"].get("phase") == "Failed"]
        assert not failed, tenant.explain(failed[0])
        done = sum(pod["status"].get("phase") == "Succeeded" for pod in listed)
        if done >= pods:
            return most
        assert time.monotonic() < end, f"{done} of {pods} done"
        time.sleep(0.3)


def all_succeeded(tenant: Tenant, batch: list[Object]) -> bool:
    """Tells whether all pods have succeeded; those that were bound to a slot in the moment of its withdrawal are
    made again."""
    time.sleep(2)  # a Job, too, takes its time: the scheduler goes on binding until the kubelet tells it
    tenant.replace_rejected(*batch)
    pods = tenant.pods()
    failed = [pod for pod in pods if pod["status"].get("phase") == "Failed" and not is_rejected(pod)]
    assert not failed, tenant.explain(failed[0]["metadata"]["name"])
    return len(pods) == len(batch) and all(pod["status"].get("phase") == "Succeeded" for pod in pods)


def phases(tenant: Tenant) -> Counter[str]:
    return Counter(pod["status"].get("phase", "") for pod in tenant.pods())


def life(pod: Object) -> tuple[float, float]:
    """When its container started and ended: seconds since 1970, rounded down by the API."""
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    start, end = (datetime.fromisoformat(ended[key]).timestamp() for key in ("startedAt", "finishedAt"))
    return start, end


def crowded(lives: list[tuple[float, float]], bound: int, since: float) -> list[list[tuple[float, float]]]:
    """Those who shared a GPU in a second in which they were more than `bound`, though one had started after `since`.

    Whoever of them started last started after `since` too, and found as many as the bound or more.
    """
    seconds = sorted({end for _, end in lives})
    together = [[(start, end) for start, end in lives if start < second <= end] for second in seconds]
    return [spans for spans in together if len(spans) > bound and any(start >= since for start, _ in spans)]
