"""Whoever holds a part of a GPU is charged for it, and what is charged and what is idle add up to the GPU's time."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.observe.charges import (
    FIRST_SHOWN,
    IDLE,
    KEPT,
    MOST_ACCOUNTS,
    Account,
    ChargeLog,
    GrantedPart,
    SharedGpu,
    charges,
    initialising_parts,
    part_of,
    with_places,
)
from gpushare.agent.observe.usage import Reading
from gpushare.grant.model import Grant
from gpushare.kube.client import GPU_SHARES, PODS
from gpushare.mps.clock import boot_clock
from tests.unit.agent.fake_node import SHARE, FakeNode
from tests.unit.agent.observed_pods import UUID, container, pod, process, usage
from tests.unit.agent.reconcile.test_places import HOLDER, tell_places
from tests.unit.agent.reconcile.test_shown_grant import has_fronts
from tests.unit.agent.reconcile.test_whole_gpus import NVIDIA, giving

GPU = SharedGpu("a", UUID, "NVIDIA H200", 100_000)
OTHER = SharedGpu("b", "GPU-1", "NVIDIA H200", 100_000)
QUARTER = Grant("a", 25, 10_000, 1)


def granted(namespace: str, grant: Grant = QUARTER, gpu: SharedGpu = GPU, pod_name: str = "p") -> GrantedPart:
    return (namespace, pod_name, "app"), (gpu.share, gpu.uuid), grant


def account(namespace: str, gpu: SharedGpu = GPU) -> Account:
    return Account(namespace, gpu.share, gpu.uuid, gpu.product)


@pytest.mark.parametrize(
    ("grant", "part"),
    [
        (Grant("a", 25, 10_000, 1), 0.25),
        (Grant("a", 5, 40_000, 1), 0.4),
        (Grant("a", 20, 10_000, 3), 0.6),
        (Grant("a", 60, 10_000, 4), 1.0),
        (Grant("a", 25, 200_000, 1), 1.0),
        (Grant("a", 10, 20_000, 1, burst_mib=70_000), 0.2),
    ],
    ids=["threads", "memory", "processes", "all-threads", "overcommit", "borrowing"],
)
def test_a_part_is_the_larger_of_threads_and_memory_that_are_granted(grant: Grant, part: float) -> None:
    assert part_of(grant, GPU) == pytest.approx(part)


def test_parts_of_two_namespaces_and_what_nobody_holds_make_the_gpu() -> None:
    held = [granted("red"), granted("red", pod_name="q"), granted("blue", Grant("a", 10, 30_000, 1))]
    charged = charges([GPU, OTHER], held, {})
    assert charged == pytest.approx(
        {account("red"): 0.5, account("blue"): 0.3, account(IDLE): 0.2, account(IDLE, OTHER): 1.0}
    )


def test_parts_above_the_whole_gpu_are_charged_in_proportion() -> None:
    everything = Grant("a", 100, 10_000, 1)
    charged = charges([GPU], [granted("red", everything), granted("red", everything), granted("blue", everything)], {})
    assert charged == pytest.approx({account("red"): 2 / 3, account("blue"): 1 / 3, account(IDLE): 0})


def test_of_a_share_with_a_queue_who_has_a_place_is_charged() -> None:
    held = [granted("red"), granted("blue"), granted("blue", gpu=OTHER, pod_name="q")]
    assert list(with_places(held, {"a"}, {"blue/p/app", "red/q/app"})) == held[1:]
    assert list(with_places(held, set(), set())) == held


def test_a_whole_gpu_is_charged_whole_and_each_of_several() -> None:
    held = {("red", "p", "app"): [("a", UUID), ("b", "GPU-1")], ("blue", "p", "app"): [("gone", "GPU-2")]}
    charged = charges([GPU, OTHER], [], held)
    assert charged == {
        account("red"): 1, account("red", OTHER): 1, account(IDLE): 0, account(IDLE, OTHER): 0,
    }  # fmt: skip


def test_a_part_of_a_gpu_that_no_share_has_is_charged_to_nobody() -> None:
    assert charges([GPU], [granted("red", gpu=OTHER), granted("red", gpu=replace(GPU, share="earlier"))], {}) == {
        account(IDLE): 1
    }


grants = st.builds(Grant, st.just("a"), st.integers(1, 100), st.integers(1, 300_000), st.integers(1, 8))
holders = st.tuples(st.sampled_from(["red", "blue", "green"]), grants, st.sampled_from([GPU, OTHER]))


@given(st.lists(holders, max_size=12))
def test_of_each_gpu_the_parts_come_to_one_whoever_holds_what(held: list[tuple[str, Grant, SharedGpu]]) -> None:
    charged = charges([GPU, OTHER], [granted(*item) for item in held], {})
    for gpu in (GPU, OTHER):
        parts = {who.namespace: part for who, part in charged.items() if who.uuid == gpu.uuid}
        assert sum(parts.values()) == pytest.approx(1)
        assert all(part >= 0 for part in parts.values())
        assert parts.keys() - {IDLE} == {namespace for namespace, _, on in held if on is gpu}


def test_init_containers_that_compute_are_charged_though_no_list_has_them() -> None:
    """Else whoever does all work in an init container pays nothing. One of a pod with a slot is charged with that."""
    used = [usage(process(10)), usage(process(12, mps=False)), usage(process(11), pod="pod-2")]
    parts = list(initialising_parts([Reading(UUID, "a", 1.0, 100_000, tuple(used))], [("team", "pod-2", "other")]))
    assert [part[:2] for part in parts] == [(("team", "pod-1", "app"), ("a", UUID))]


def test_a_container_between_two_scrapes_is_charged_for_its_time() -> None:
    log = ChargeLog()
    log.update({account(IDLE): 1.0}, 0.0)
    log.update({account("red"): 0.5, account(IDLE): 0.5}, 1000.0)
    log.update({account(IDLE): 1.0}, 1010.0)
    assert log.totals(1015.0)[account("red")] == 0, "a series that appears with a value has no increase of it"
    later = log.totals(1000.0 + FIRST_SHOWN)
    assert later[account("red")] == 5
    assert sum(later.values()) == 1000 + FIRST_SHOWN


@given(st.lists(st.tuples(st.lists(holders, max_size=4), st.floats(0, 500)), max_size=20))
def test_totals_never_fall_and_add_up_to_the_time_looked_at(
    turns: list[tuple[list[tuple[str, Grant, SharedGpu]], float]],
) -> None:
    log, now, before = ChargeLog(), 50.0, dict[Account, float]()
    log.update(charges([GPU, OTHER], [], {}), now)
    for held, seconds in turns:
        log.update(charges([GPU, OTHER], [granted(*item) for item in held], {}), now)
        now += seconds
        totals = log.totals(now)
        assert all(totals.get(who, total) >= total - 1e-6 for who, total in before.items())
        before = totals
    later = now + FIRST_SHOWN + 1
    assert sum(log.totals(later).values()) == pytest.approx(2 * (later - 50))


def test_an_account_is_kept_for_an_hour_after_its_last_charge() -> None:
    log = ChargeLog()
    log.update({account("red"): 1.0}, 0.0)
    log.update({}, 500.0)
    log.update({}, 500.0 + KEPT - 1)
    assert log.totals(500.0 + KEPT - 1)[account("red")] == 500
    log.update({}, 500.0 + KEPT)
    assert log.totals(500.0 + KEPT) == {}


def test_of_too_many_accounts_the_longest_gone_are_forgotten() -> None:
    log = ChargeLog()
    for number in range(MOST_ACCOUNTS + 10):
        log.update({account("held"): 0.5, account(f"n{number}"): 0.5}, float(number))
    totals = log.totals(1e6)
    assert len(totals) == MOST_ACCOUNTS
    assert {account("held"), account(f"n{MOST_ACCOUNTS + 9}")} <= totals.keys()
    assert account("n5") not in totals


def charged(node: FakeNode) -> dict[str, float]:
    """What is charged of GPU-0 now, by namespace."""
    accounts = node.running.observer.charges.charged
    return {who.namespace: part for who, part in accounts.items() if who.uuid == UUID}


async def test_a_slot_is_charged_from_its_grant_until_it_is_given_back(node: FakeNode) -> None:
    """Its image may be pulled for an hour, and nobody else gets the slot."""
    await node.serving()
    await node.until(lambda: charged(node) == {IDLE: 1.0})
    waiting = pod(1, container(), name="pod", namespace="ns", with_status=False)
    node.kube.put(PODS, waiting)
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    await node.until(lambda: charged(node) == pytest.approx({"ns": 0.5, IDLE: 0.5}))
    node.kube.put(PODS, {**waiting, "status": {"phase": "Succeeded"}})
    await node.until(lambda: charged(node) == {IDLE: 1.0})


async def test_a_slot_is_charged_while_it_has_a_place_where_there_is_a_queue(node: FakeNode) -> None:
    has_fronts(node)
    await node.serving()
    clients = {**SHARE["spec"]["clients"], "queue": {"slots": 8}}
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": clients}})
    node.kube.put(PODS, pod(1, container(), name="pod", namespace="ns"))
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    await node.until(lambda: len(node.kubelet.ids()) == 12)
    await node.ticks(2)
    assert charged(node) == {IDLE: 1.0}
    tell_places(node, HOLDER)
    await node.until(lambda: charged(node) == pytest.approx({"ns": 0.5, IDLE: 0.5}))
    tell_places(node)
    await node.until(lambda: charged(node) == {IDLE: 1.0})


async def test_what_the_share_says_later_changes_no_charge_of_who_runs(node: FakeNode) -> None:
    await node.serving()
    node.kube.put(PODS, pod(1, container(), name="pod", namespace="ns"))
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    await node.until(lambda: charged(node) == pytest.approx({"ns": 0.5, IDLE: 0.5}))
    clients = {**SHARE["spec"]["clients"], "threads": {"default": 5, "max": 10}}
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": clients}})
    await node.until(lambda: node.readings.cache.shares["a"].clients.threads.max == 10)
    await node.ticks(3)
    assert charged(node) == pytest.approx({"ns": 0.5, IDLE: 0.5})


async def test_a_restarted_agent_charges_who_holds_parts_from_its_own_start(node: FakeNode) -> None:
    await node.serving()
    node.kube.put(PODS, pod(1, container(), name="pod", namespace="ns"))
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    await node.until(lambda: charged(node).get("ns"))
    await node.stop()
    node.start()
    await node.until(lambda: charged(node) == pytest.approx({"ns": 0.5, IDLE: 0.5}))
    totals = node.running.observer.charges.totals(boot_clock() + FIRST_SHOWN)
    assert sum(total for who, total in totals.items() if who.uuid == UUID) <= FIRST_SHOWN + 10


async def test_an_init_container_with_a_client_is_charged_and_a_lost_gpu_is_not(node: FakeNode) -> None:
    await node.serving()
    init = pod(1, container(), name="pod", namespace="ns")
    node.kube.put(PODS, init)
    await node.until(lambda: charged(node) == {IDLE: 1.0})
    node.client(4711, 100, init)
    await node.until(lambda: charged(node) == pytest.approx({"ns": 0.5, IDLE: 0.5}))
    node.nvml.lost.add(UUID)
    await node.until(lambda: charged(node) == {})


async def test_who_has_a_whole_gpu_is_charged_for_it(node: FakeNode) -> None:
    await giving(node)
    await node.until(lambda: charged(node) == {IDLE: 1.0})
    node.kubelet.holders = {(NVIDIA, UUID)}
    await node.until(lambda: charged(node) == {"ns": 1.0, IDLE: 0.0})
