"""What the node offers to claims, within what the API server takes."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from gpushare.agent.dra.slices import closed_devices, device, resource_slice, same, tainted
from gpushare.agent.gpus.view import DriverVersions
from gpushare.nvml.types import GpuInfo
from tests.unit.agent.dra.objects import share

H200 = GpuInfo("GPU-AB", 0, 0, "NVIDIA H200", 143771, 132, "9.0", 1, False)
DRIVER = DriverVersions("580.159.04", "13.0")


def offered(info: GpuInfo = H200, **spec: Any) -> dict[str, Any]:
    offer = device(info, share(**spec), DRIVER)
    assert offer is not None
    return offer


def clients(**fields: Any) -> dict[str, Any]:
    return {"perGpu": 8, "memory": {"default": "4Gi"}, **fields}


def test_a_gpu_is_offered_with_all_that_claims_may_add_up_to() -> None:
    offer = offered()
    assert offer["name"] == "gpu-ab"
    assert offer["allowMultipleAllocations"] is True
    assert {name: body["value"] for name, body in offer["capacity"].items()} == {
        "threads": "100", "memory": "143259Mi", "clients": "8",
    }  # fmt: skip
    assert offer["attributes"]["driverVersion"] == {"version": "580.159.4"}, "semantic versions have no leading zeros"
    assert offer["attributes"]["cudaComputeCapability"] == {"version": "9.0.0"}
    assert offer["attributes"]["numaNode"] == {"int": 1}
    assert "taints" not in offer


def test_over_commit_raises_what_there_is_and_not_what_one_may_have() -> None:
    threads = {"default": 20, "max": 60, "overcommit": 3}
    memory = {"default": "4Gi", "max": "64Gi", "overcommit": True}
    capacity = offered(clients=clients(threads=threads, memory=memory))["capacity"]
    assert capacity["threads"]["value"] == "300"
    assert capacity["threads"]["requestPolicy"]["validRange"]["max"] == "60"
    assert capacity["memory"]["value"] == "512Gi"


def test_a_gpu_on_which_not_one_client_fits_is_not_offered() -> None:
    small = GpuInfo("GPU-1", 0, 0, "NVIDIA T4", 15360, 40, "7.5", None, False)
    assert device(small, share(clients=clients(memory={"default": "15Gi"})), DRIVER) is None


@given(
    st.integers(1024, 300_000),
    st.integers(512, 200_000).flatmap(lambda least: st.tuples(st.just(least), st.integers(least, 300_000))),
    st.integers(1, 100).flatmap(lambda least: st.tuples(st.just(least), st.integers(least, 100))),
)
def test_every_policy_is_one_that_the_api_server_takes(
    gpu_mib: int, memory: tuple[int, int], threads: tuple[int, int]
) -> None:
    """validateRequestPolicyRange: min ≤ default ≤ max ≤ value, and default and max whole steps above min."""
    info = GpuInfo("GPU-1", 0, 0, "any", gpu_mib, 132, "9.0", None, False)
    amounts = {"default": f"{memory[0]}Mi", "max": f"{memory[1]}Mi"}
    bounds = {"default": threads[0], "max": threads[1]}
    offer = device(info, share(clients=clients(memory=amounts, threads=bounds)), DRIVER)
    if offer is None:
        assert memory[0] > gpu_mib - 512
        return
    for name in ("threads", "memory"):
        policy = offer["capacity"][name]["requestPolicy"]
        value, default = (parse_quantity(item) for item in (offer["capacity"][name]["value"], policy["default"]))
        least, most, step = (parse_quantity(policy["validRange"][key]) for key in ("min", "max", "step"))
        assert least <= default <= most <= value
        assert (default - least) % step == 0
        assert (most - least) % step == 0


@pytest.mark.parametrize(
    ("change", "equal"),
    [
        (lambda obj: obj, True),
        (lambda obj: obj["spec"]["devices"][1]["taints"][0].update(timeAdded="2026-01-01T00:00:00Z"), True),
        (lambda obj: obj["spec"]["devices"][0].update(taints=[{"key": "k"}]), False),
        (lambda obj: obj["spec"]["devices"][1].pop("taints"), False),
        (lambda obj: obj["spec"]["devices"].pop(), False),
        (lambda obj: obj["spec"].update(nodeName="other"), False),
        (lambda obj: obj["metadata"]["annotations"].update({"gpushare.dev/prepared": "8"}), False),
        (lambda obj: obj["metadata"].update(resourceVersion="9", labels={"some": "body's"}), True),
    ],
)
def test_only_what_the_api_server_adds_by_itself_makes_no_difference(change: Any, equal: bool) -> None:
    wanted = resource_slice("n", "u", [{"name": "a"}, tainted({"name": "b"}, "Draining")], 7)
    present = copy.deepcopy(wanted)
    change(present)
    assert same(wanted, present) is equal


def test_tainted_devices_are_closed_and_without_a_slice_nothing_is_known() -> None:
    published = resource_slice("n", "u", [tainted({"name": "b"}, "Draining"), {"name": "a"}])
    assert [item["name"] for item in published["spec"]["devices"]] == ["a", "b"]
    assert closed_devices(published) == {"b"}
    assert closed_devices(None) is None


LENDING = {"default": "4Gi", "max": "64Gi", "limits": {"max": "96Gi", "overcommitPercent": 150}}


def test_memory_that_claims_may_borrow_is_a_capacity_of_its_own() -> None:
    capacity = offered(clients=clients(memory=LENDING))["capacity"]
    assert capacity["memory"]["value"] == "143259Mi"
    assert capacity["memoryBurst"]["value"] == "71629Mi", "with memory 150 percent of it"
    assert capacity["memoryBurst"]["requestPolicy"] == {
        "default": "0Mi",
        "validRange": {"min": "0Mi", "max": "71629Mi", "step": "1Mi"},
    }


@pytest.mark.parametrize("limits", [None, {"max": "96Gi"}])
def test_a_gpu_of_which_nothing_can_be_borrowed_offers_no_such_capacity(limits: dict[str, Any] | None) -> None:
    memory = {"default": "4Gi", "max": "64Gi"} | ({"limits": limits} if limits else {})
    assert "memoryBurst" not in offered(clients=clients(memory=memory))["capacity"]
