"""Claims that fit nowhere: which capacity lacks, by how much, and where they nearly fit."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.gpushare import MOST_UNPLACED, GpuShare
from gpushare.planner.pending import (
    EXPLAINED,
    REQUESTS,
    Capacity,
    Claim,
    ClaimDevice,
    Demand,
    Held,
    claim_counts,
    due,
    pending,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(minutes=1)
GIB = 2**30


def device(index: int = 0, share: str = "a", threads: int = 100, memory: int = 100, closed: str = "") -> ClaimDevice:
    capacity = {
        "threads": Capacity(threads, default=25, least=1),
        "memory": Capacity(memory * GIB, default=16 * GIB, least=GIB // 2, step=2**20),
        "clients": Capacity(4, default=1),
    }
    return ClaimDevice("n1", f"gpu-{index}", share, capacity, closed)


def held(index: int = 0, threads: int = 0, memory: int = 0, clients: int = 1) -> Held:
    return Held(("n1", f"gpu-{index}"), {"threads": threads, "memory": memory * GIB, "clients": clients})


def claim(name: str = "ml/x", *held: Held, created: datetime = LONG_AGO, **asked: int) -> Claim:
    return Claim(name, f"uid-{name}", "a", created, asked, held)


def told(*parts: ClaimDevice | Claim) -> list[str]:
    devices = tuple(part for part in parts if isinstance(part, ClaimDevice))
    claims = tuple(part for part in parts if isinstance(part, Claim))
    return [item.message for item in pending(Demand(devices, claims), NOW)]


def test_a_claim_that_fits_somewhere_is_not_explained() -> None:
    full = claim("ml/full", held(0, threads=100))
    assert told(device(0), device(1), full, claim(threads=50)) == []


def test_a_claim_whose_amounts_fit_is_told_of_its_selectors() -> None:
    full = claim("ml/full", held(0, threads=100))
    selects = replace(claim(threads=50), selects=True)
    (message,) = told(device(0), device(1), full, selects, claim("ml/plain", threads=50))
    assert message.startswith(
        "its amounts fit on GPU gpu-1 of node n1 now: unless its pod waits for something else, its own"
    )
    (lacks,) = told(device(0), full, selects)
    assert "50 percent of threads lack" in lacks


def test_what_lacks_is_told_by_name_and_amount_and_where_it_nearly_fits() -> None:
    others = [claim("ml/a", held(0, threads=90)), claim("ml/b", held(1, threads=60))]
    assert told(device(0), device(1), *others, claim(threads=50)) == [
        'fits on none of 2 GPUs of GpuShare "a" now; nearest is GPU gpu-1 of node n1: 10 percent of threads lack'
        " (50 asked, 40 left)"
    ]


def test_a_gpu_that_lacks_one_capacity_is_nearer_than_two() -> None:
    others = [claim("ml/a", held(0, threads=60, memory=99)), claim("ml/b", held(1, threads=100))]
    (message,) = told(device(0), device(1), *others, claim(threads=50, memory=16 * GIB))
    assert "GPU gpu-1" in message
    assert "memory" not in message


def test_defaults_count_where_nothing_is_asked() -> None:
    (message,) = told(device(0), claim("ml/a", held(0, memory=90)), claim())
    assert message.endswith("6Gi of memory lack (16Gi asked, 10Gi left)")


def test_memory_is_rounded_up_to_the_step_of_the_gpu() -> None:
    (message,) = told(device(0, memory=1), claim("ml/a", held(0, memory=0)), claim(memory=GIB + 1))
    assert "1Mi of memory lack (1025Mi asked, 1Gi left)" in message
    assert message.endswith("no GPU of the share has that much even when empty: claim less")


def test_a_full_table_of_clients_is_told() -> None:
    others = [claim(f"ml/{number}", held(0)) for number in range(4)]
    assert told(device(0), *others, claim(threads=1))[0].endswith("no slot is left (clients.perGpu)")


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ([], 'no GPU of GpuShare "a" is offered'),
        ([device(0, share="other")], 'no GPU of GpuShare "a" is offered'),
        ([device(0, closed="Draining")], "takes a client now; GPU gpu-0 of node n1: Draining"),
    ],
)
def test_where_no_gpu_takes_clients_that_is_said(devices: list[ClaimDevice], words: str) -> None:
    (message,) = told(*devices, claim())
    assert words in message


def test_a_young_claim_is_left_alone_until_it_is_due() -> None:
    young = claim(created=NOW - timedelta(seconds=1))
    assert told(young) == []
    assert list(due(Demand((), (young,)))) == [NOW + timedelta(seconds=9)]


def test_what_is_news_does_not_move_with_the_amounts() -> None:
    def key(taken: int) -> str:
        (item,) = pending(Demand((device(0),), (claim("ml/a", held(0, threads=taken)), claim(threads=50))), NOW)
        return item.key

    assert key(60) == key(90) == "threads"


def test_a_share_tells_granted_offered_and_some_waiting_claims() -> None:
    spec = {"clients": {"perGpu": 4, "memory": {"default": "16Gi"}}, "delivery": "ResourceClaim"}
    share = GpuShare.model_validate({"metadata": {"name": "a"}, "spec": spec})
    demand = Demand(
        (device(0), device(1), device(2, share="other")),
        (claim("ml/a", held(0, threads=30, memory=8)), claim("ml/b", threads=500)),
    )
    counted = claim_counts(share, demand, pending(demand, NOW))
    assert counted is not None
    assert (counted.allocated, counted.pending, counted.threads, counted.memory) == (1, 1, "30/200%", "8Gi/200Gi")
    assert [item.claim for item in counted.unplaced] == ["ml/b"]
    by_slots = share.model_copy(update={"spec": share.spec.model_copy(update={"delivery": "DevicePlugin"})})
    assert claim_counts(by_slots, demand, []) is None


_AMOUNTS = st.fixed_dictionaries({"threads": st.integers(1, 100), "memory": st.integers(GIB // 2, 100 * GIB)})


@given(asked=_AMOUNTS, taken=st.lists(_AMOUNTS, min_size=1, max_size=4))
def test_a_claim_is_explained_exactly_when_no_gpu_has_room(
    asked: dict[str, int], taken: list[Mapping[str, int]]
) -> None:
    devices = [device(index) for index in range(len(taken))]
    used = {device.key: amounts for device, amounts in zip(devices, taken, strict=True)}
    takers = [claim(f"ml/{device.name}", Held(device.key, used[device.key])) for device in devices]
    need = {"threads": asked["threads"], "memory": -(-asked["memory"] // 2**20) * 2**20}
    fits = any(
        all(need[name] <= device.capacity[name].value - used[device.key][name] for name in need) for device in devices
    )
    explained = pending(Demand(tuple(devices), (*takers, claim(**asked))), NOW)
    assert not explained if fits else [item.claim.name for item in explained] == ["ml/x"]


def test_claims_that_ask_for_the_same_are_told_the_same_each_by_its_name() -> None:
    full = claim("ml/full", held(0, threads=90))
    waiting = [claim(f"ml/w{number}", threads=50) for number in range(3)]
    explained = pending(Demand((device(0),), (full, *waiting)), NOW)
    assert [item.claim.name for item in explained] == ["ml/w0", "ml/w1", "ml/w2"]
    assert len({item.message for item in explained}) == 1


def test_of_gpus_with_the_same_left_the_first_is_named_and_all_are_counted() -> None:
    devices = tuple(device(index) for index in (2, 0, 1))
    (message,) = told(*devices, claim(threads=500))
    assert message.startswith('fits on none of 3 GPUs of GpuShare "a" now; nearest is GPU gpu-0 of node n1')


def test_the_longest_waiting_requests_of_a_tenant_are_explained() -> None:
    many = [
        claim(f"ml/{number:04}", created=LONG_AGO - timedelta(seconds=number), threads=101 + number)
        for number in range(REQUESTS + 10)
    ]
    explained = pending(Demand((device(0),), tuple(many)), NOW)
    assert [item.claim for item in explained] == many[:9:-1]


def test_no_namespace_crowds_out_the_explanations_of_another() -> None:
    crowd = [claim(f"a-crowd/{number:04}", threads=200 + number) for number in range(2 * EXPLAINED)]
    late = LONG_AGO + timedelta(seconds=1)
    other = claim("ml/of-a-pod", created=late + timedelta(seconds=1), threads=101)
    waits = [claim("ml/alone", created=late, threads=101), replace(other, for_pod=True)]
    demand = Demand((device(0),), (*crowd, *waits))
    explained = pending(demand, NOW)
    assert len(explained) == REQUESTS + 1
    assert [item.claim.name for item in explained[:4]] == ["ml/of-a-pod", "a-crowd/0000", "a-crowd/0001", "ml/alone"]
    spec = {"clients": {"perGpu": 4, "memory": {"default": "16Gi"}}, "delivery": "ResourceClaim"}
    counted = claim_counts(GpuShare.model_validate({"metadata": {"name": "a"}, "spec": spec}), demand, explained)
    assert counted is not None
    assert [item.claim for item in counted.unplaced].count("ml/of-a-pod") == 1
    assert len(counted.unplaced) == MOST_UNPLACED


def test_a_demand_has_devices_and_all_claims_on_them() -> None:
    asks, holds = claim("ml/asks"), Claim("ml/holds", "u", "", LONG_AGO, {}, (held(0),))
    other = Claim("ml/other", "v", "b", LONG_AGO)
    by_share = Demand((device(0), device(1, share="b")), (asks, holds, other)).by_share
    assert by_share["a"] == Demand((device(0),), (asks, holds))
    assert by_share["b"] == Demand((device(1, share="b"),), (other,))


def test_a_claim_that_may_not_borrow_here_or_not_so_much_is_told_so() -> None:
    lending = replace(device(), capacity={**device().capacity, "memoryBurst": Capacity(40 * GIB, 0, step=2**20)})
    asks = claim(memory=16 * GIB, memoryBurst=8 * GIB)
    assert told(lending, asks) == []
    (message,) = told(device(), asks)
    assert "8Gi of memory to borrow (memoryBurst) lack (8Gi asked, 0Mi left)" in message
    assert "claim less" in message
    taken = claim("ml/taken", Held(("n1", "gpu-0"), {"memoryBurst": 36 * GIB}))
    (message,) = told(lending, taken, asks)
    assert "4Gi of memory to borrow (memoryBurst) lack (8Gi asked, 4Gi left)" in message
