"""Slices and claims of the API server, read into whole numbers."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.controller.claims.views import claim, devices
from gpushare.kube.resources import Object
from gpushare.planner.pending import Capacity, Claim, Held

SLICE: dict[str, Any] = {
    "metadata": {"name": "n1-gpushare.dev"},
    "spec": {
        "driver": "gpushare.dev",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "gpu-1",
                "allowMultipleAllocations": True,
                "attributes": {"share": {"string": "a"}, "uuid": {"string": "GPU-1"}},
                "capacity": {
                    "threads": {
                        "value": "100",
                        "requestPolicy": {"default": "25", "validRange": {"min": "1", "max": "50", "step": "1"}},
                    },
                    "memory": {
                        "value": "141Gi",
                        "requestPolicy": {"default": "16Gi", "validRange": {"min": "512Mi", "step": "1Mi"}},
                    },
                    "clients": {"value": "8", "requestPolicy": {"default": "1", "validValues": ["1"]}},
                },
                "taints": [{"key": "gpushare.dev/not-ready", "value": "Draining", "effect": "NoSchedule"}],
            }
        ],
    },
}
CLAIM: dict[str, Any] = {
    "metadata": {"name": "x", "namespace": "ml", "uid": "u", "creationTimestamp": "2026-03-01T00:00:00Z"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "gpu",
                    "exactly": {
                        "deviceClassName": "small.a.gpushare.dev",
                        "capacity": {"requests": {"threads": "9500m", "memory": "8Gi"}},
                    },
                }
            ]
        }
    },
}


def read(obj: Object) -> Claim:
    read = claim(obj)
    assert read is not None
    return read


def test_a_device_is_read_with_its_policies_and_its_taint() -> None:
    (device,) = devices(SLICE)
    assert (device.node, device.name, device.share, device.closed) == ("n1", "gpu-1", "a", "Draining")
    assert device.capacity == {
        "threads": Capacity(100, default=25, least=1),
        "memory": Capacity(141 * 2**30, default=16 * 2**30, least=2**29, step=2**20),
        "clients": Capacity(8, default=1),
    }


def test_a_claim_is_read_with_what_it_asks_and_what_it_has() -> None:
    pending = read(CLAIM)
    assert (pending.name, pending.share, pending.held) == ("ml/x", "a", ())
    assert pending.created == datetime(2026, 3, 1, tzinfo=UTC)
    assert pending.asked == {"threads": 10, "memory": 8 * 2**30}
    result = {"driver": "gpushare.dev", "pool": "n1", "device": "gpu-1", "consumedCapacity": {"threads": "10"}}
    others = {"driver": "gpu.example.com", "pool": "n1", "device": "gpu-9"}
    status = {"allocation": {"devices": {"results": [result, others]}}}
    has = read(CLAIM | {"status": status})
    assert has.held == (Held(("n1", "gpu-1"), {"threads": 10}),)


def test_a_claim_of_another_class_is_none_of_ours() -> None:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}
    assert claim(CLAIM | {"spec": spec}) is None


def test_a_device_of_ours_counts_as_held_whatever_the_class_that_led_to_it() -> None:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "of-an-admin"}}]}}
    result = {"driver": "gpushare.dev", "pool": "n1", "device": "gpu-1", "consumedCapacity": {"threads": "10"}}
    has = read(CLAIM | {"spec": spec, "status": {"allocation": {"devices": {"results": [result]}}}})
    assert (has.share, has.held) == ("", (Held(("n1", "gpu-1"), {"threads": 10}),))


def test_an_amount_that_cannot_be_read_is_none() -> None:
    result = {"driver": "gpushare.dev", "pool": "n1", "device": "gpu-1", "consumedCapacity": {"threads": "1e999999"}}
    has = read(CLAIM | {"status": {"allocation": {"devices": {"results": [result]}}}})
    assert has.held == (Held(("n1", "gpu-1"), {"threads": 0}),)


@pytest.mark.parametrize("amount", ["1e999999999", "1e300000", "9" * 1_000_000, "-1e999999999", "1e-999999999"])
def test_a_capacity_too_large_for_kubernetes_counts_as_none_at_once(amount: str) -> None:
    [shown] = SLICE["spec"]["devices"]
    policy = {"default": amount, "validRange": {"min": amount, "step": amount}}
    capacity = {"threads": {"value": amount, "requestPolicy": policy}}
    began = time.process_time()
    (device,) = devices({"spec": SLICE["spec"] | {"devices": [shown | {"capacity": capacity}]}})
    assert device.capacity == {"threads": Capacity(0, default=0, least=0, step=1)}
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("where", [{"nodeName": "n2"}, {"nodeName": None}, {"pool": {"name": "n2"}}], ids=str)
def test_a_slice_in_the_pool_of_another_node_offers_nothing(where: dict[str, Any]) -> None:
    assert list(devices({"spec": SLICE["spec"] | where})) == []
