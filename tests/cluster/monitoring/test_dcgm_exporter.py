"""Which pods dcgm-exporter names beside the figures of a GPU, as docs/metrics.md says.

Opt-in (`make dcgm-test SOURCE=DIR`): DIR is a copy of github.com/NVIDIA/dcgm-exporter. Its mapping runs as it is,
against the kubelet and the API server of a real cluster; only the values, which DCGM would give, are made up.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from localcluster.stack import install
from tests.cluster import claims, conftest
from tests.cluster.claims import SIZES
from tests.cluster.harness import Harness, Tenant, gpu_share, own_cluster, wait_until
from tests.cluster.monitoring import attribution
from tests.cluster.monitoring.attribution import Series

CLUSTER = f"{conftest.CLUSTER}-dcgm"
WATTS = 100.0
"""The power of the first GPU; each further one takes a watt more."""


@dataclass(frozen=True)
class Fleet:
    """Clients of three GPUs of one node: two with a slot of one, one with a claim, one with a whole GPU."""

    harness: Harness
    tenant: Tenant
    exporters: str
    slots: str
    claim: str
    whole: str

    @property
    def uuids(self) -> list[str]:
        return [self.slots, self.claim, self.whole]

    def exported(self, name: str, **config: object) -> dict[str, list[Series]]:
        return attribution.exported(self.harness, self.exporters, name, self.uuids, **config)

    def named(self, pod: str, **further: str) -> dict[str, str]:
        return {"namespace": self.tenant.name, "pod": pod, "container": "app", **further}


@pytest.fixture(scope="module")
def fresh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    source, go_dcgm = (request.config.getoption(name) for name in ("--dcgm-exporter", "--go-dcgm"))
    if source is None:
        pytest.skip("needs dcgm-exporter's source: make dcgm-test SOURCE=DIR")
    archive = attribution.build(Path(source), Path(go_dcgm) if go_dcgm else None, tmp_path_factory.mktemp("exporter"))
    with own_cluster(CLUSTER, archive) as harness:
        install(harness.stack, "--set=simulation.gpus=3")
        wait_until("three GPUs", lambda: len(harness.gpu_node()["status"].get("gpus", [])) == 3, 90)
        yield harness


@pytest.fixture(scope="module")
def fleet(fresh: Harness) -> Iterator[Fleet]:
    with (
        fresh.share("batch", per_node=1, per_gpu=4) as batch,
        fresh.share("claimed", per_node=1, per_gpu=4, delivery="ResourceClaim", sizes=SIZES) as claimed,
        fresh.namespace() as tenant,
        fresh.namespace("exporters", enforce="privileged") as exporters,
    ):
        fresh.kubectl.apply(gpu_share("training", {"wholeGpus": {"resourceName": "nvidia.com/gpu"}}))
        wait_until("a whole GPU", lambda: fresh.allocatable("nvidia.com/gpu") == 1, 60)
        batch.wait_capacity(4)
        claims.wait_template(tenant, "small", "claimed")
        whole = tenant.pod("whole", "unused", command=["sleep", "3600"])
        whole["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        tenant.start(
            tenant.pod("first", batch.name, *claims.HELD),
            tenant.pod("second", batch.name, *claims.HELD),
            claims.sized(tenant, "claimant", claimed.name, "small"),
            whole,
        )
        wait_until("four clients", lambda: len(tenant.running()) == 4, 90, lambda: tenant.pods())
        exporters.kubectl.apply(*attribution.account(exporters.name))
        owners = {assignment["share"]: assignment["uuid"] for assignment in fresh.gpu_node()["spec"]["assignments"]}
        yield Fleet(
            fresh, tenant, exporters.name, slots=owners["batch"], claim=owners["claimed"], whole=owners["training"]
        )
        tenant.delete_pods()
        fresh.kubectl.delete("gpushare", "training")


def test_the_exporter_by_default_names_pods_of_whole_gpus_alone(fleet: Fleet) -> None:
    series_of = fleet.exported("plain")
    assert series_of[fleet.whole] == [Series(WATTS + 2, fleet.named("whole"))]
    assert series_of[fleet.slots] == [Series(WATTS, {})]
    assert series_of[fleet.claim] == [Series(WATTS + 1, {})]


def test_with_the_shares_resource_one_of_its_pods_gets_the_figure_of_all(fleet: Fleet) -> None:
    (shown,) = fleet.exported("named", NvidiaResourceNames=["gpushare.dev/batch"])[fleet.slots]
    assert shown.value == WATTS
    assert shown.labels in (fleet.named("first"), fleet.named("second"))


def test_each_pod_of_a_slot_gets_the_whole_gpus_figure_with_virtual_gpus(fleet: Fleet) -> None:
    series_of = fleet.exported(
        "virtual", NvidiaResourceNames=["gpushare.dev/batch"], KubernetesVirtualGPUs=True, KubernetesEnablePodUID=True
    )
    shown = {series.labels["pod"]: series for series in series_of[fleet.slots]}
    assert shown.keys() == {"first", "second"}
    assert {series.value for series in shown.values()} == {WATTS}, "a sum over pods counts the GPU twice"
    assert len({series.labels["vgpu"] for series in shown.values()}) == 2, "each its slot"
    for pod, series in shown.items():
        uid = fleet.tenant.kubectl.get("pod", pod)["metadata"]["uid"]
        assert series.labels == fleet.named(pod, pod_uid=uid, vgpu=series.labels["vgpu"])
    assert series_of[fleet.claim] == [Series(WATTS + 1, {})]


def test_the_exporter_with_dra_waits_for_an_api_that_is_gone(fleet: Fleet) -> None:
    """It reads ResourceSlices of v1beta1 before it starts; this cluster serves v1 alone, as is Kubernetes' default."""
    served = fleet.harness.kubectl("api-versions").split()
    assert "resource.k8s.io/v1" in served
    assert "resource.k8s.io/v1beta1" not in served
    kubectl = attribution.start(fleet.harness, fleet.exporters, "dra", fleet.uuids, KubernetesEnableDRA=True)

    def refused() -> bool:
        return kubectl.logs("dra").count("failed to list *v1beta1.ResourceSlice") > 2

    wait_until("it has tried more than twice", refused, 60, lambda: kubectl.logs("dra"))
    assert kubectl.get("pod", "dra")["status"]["phase"] == "Running"
    assert "DCGM_" not in kubectl.logs("dra")
