"""A share gives whole GPUs in place of parts, under a name that is nobody else's by its domain."""

from typing import Any

import pytest
from pydantic import ValidationError

from gpushare.api.gpushare import GpuShare

CLIENTS = {"perGpu": 8, "memory": {"default": "16Gi"}}


def share(**spec: Any) -> GpuShare:
    return GpuShare.model_validate({"metadata": {"name": "train"}, "spec": spec})


def test_the_name_is_the_shares_own_unless_it_says_another() -> None:
    assert share(wholeGpus={}).resource == "gpushare.dev/train"
    assert share(wholeGpus={"resourceName": "nvidia.com/gpu"}).resource == "nvidia.com/gpu"
    assert share(clients=CLIENTS).resource == "gpushare.dev/train"


@pytest.mark.parametrize("spec", [{}, {"clients": CLIENTS, "wholeGpus": {}}])
def test_a_share_has_clients_or_whole_gpus_and_never_both(spec: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"spec\.clients for shared GPUs or spec\.wholeGpus"):
        share(**spec)


@pytest.mark.parametrize(
    "name",
    [
        "gpu",
        "example.com/",
        "/gpu",
        "Example.com/gpu",
        "example.com/a/b",
        "example.com/-gpu",
        f"example.com/{'g' * 64}",
        "gpushare.dev/other",
        "internal.gpushare.dev/mps",
        "kubernetes.io/gpu",
        "deviceclass.resource.kubernetes.io/gpu",
        "requests.example.com/gpu",
        f"{'a.' * 63}a/gpu",
    ],
)
def test_a_resource_name_of_another_owner_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="resourceName"):
        share(wholeGpus={"resourceName": name})


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "example.com/H200.whole_1", "gpu/x", "a-b.example.com/gpu"])
def test_any_other_extended_resource_may_be_it(name: str) -> None:
    assert share(wholeGpus={"resourceName": name}).resource == name


def test_sums_over_slots_count_one_container_on_each_whole_gpu() -> None:
    assert share(wholeGpus={}).whole
    assert share(wholeGpus={}).clients.per_gpu == 1
