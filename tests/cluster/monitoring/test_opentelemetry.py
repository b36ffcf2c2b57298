"""What an OpenTelemetry Collector makes of our metrics by examples/opentelemetry.yaml, as docs/metrics.md says.

Opt-in (`make otel-test`), because building a collector takes minutes.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.cluster.layout import NODE_NAME
from localcluster.paths import REPOSITORY, cache_root
from localcluster.programs.build import COLLECTOR, build_component
from tests.cluster import conftest
from tests.cluster.harness import Harness, own_cluster, wait_until
from tests.cluster.monitoring.collector import Point, points, running

CLUSTER = f"{conftest.CLUSTER}-otel"
CONFIGURATION = REPOSITORY / "examples" / "opentelemetry.yaml"
USED = "gpushare_container_memory_used_bytes"


@pytest.fixture(scope="module")
def fresh(request: pytest.FixtureRequest) -> Iterator[Harness]:
    if not request.config.getoption("--opentelemetry"):
        pytest.skip("builds an OpenTelemetry Collector: make otel-test")
    with own_cluster(CLUSTER) as harness:
        yield harness


def latest(sent: Path, name: str, **attributes: str) -> dict[str, Point]:
    """The last point of each GPU, by its UUID."""
    matching = [
        point for point in points(sent) if point.name == name and attributes.items() <= point.attributes.items()
    ]
    return {point.attributes["hw.id"]: point for point in matching}


def test_gpus_and_containers_have_the_attributes_of_semantic_conventions(fresh: Harness, tmp_path: Path) -> None:
    program = build_component(COLLECTOR, cache_root()) / "otelcol"
    subprocess.run([program, "validate", f"--config={CONFIGURATION}"], timeout=60, check=True)
    with (
        fresh.share("seen", per_node=1, per_gpu=4),
        fresh.namespace() as tenant,
        running(program, CONFIGURATION, fresh.layout.kubeconfig, tmp_path) as sent,
    ):
        tenant.neighbours("seen", 2)

        def clients() -> dict[str, Point]:
            used = [point for point in points(sent) if point.name == USED and point.value > 0]
            return {str(point.resource.get("k8s.pod.name")): point for point in used}

        def explained() -> str:
            return (tmp_path / "collector.log").read_text()[-2000:]

        seen = wait_until("both clients", lambda: clients() if len(clients()) == 2 else None, 60, explained)
        gpus = {gpu["uuid"]: gpu for gpu in fresh.gpu_node()["status"]["gpus"]}
        (shared,) = {assignment["uuid"] for assignment in fresh.gpu_node()["spec"]["assignments"]}

        assert seen.keys() == {"neighbour-0", "neighbour-1"}
        for point in seen.values():
            about = point.resource
            assert (about["k8s.namespace.name"], about["k8s.container.name"]) == (tenant.name, "app")
            assert about["k8s.node.name"] == NODE_NAME
            assert "k8s.pod.uid" not in about, "it would be the agent's"
            assert point.attributes == {
                "hw.id": shared, "hw.type": "gpu", "hw.vendor": "NVIDIA", "gpushare.share.name": "seen",
            }  # fmt: skip

        limits = latest(sent, "hw.gpu.memory.limit")
        assert {uuid: limit.value for uuid, limit in limits.items()} == {
            uuid: gpu["memoryMib"] * 1048576 for uuid, gpu in gpus.items()
        }
        assert {(limit.kind, limit.unit) for limit in limits.values()} == {("sum", "By")}
        usage = wait_until("the clients' memory counts", lambda: above(latest(sent, "hw.gpu.memory.usage"), shared), 30)
        assert usage.keys() == gpus.keys()
        assert {(point.kind, point.unit) for point in usage.values()} == {("sum", "By")}
        (idle,) = gpus.keys() - {shared}
        assert 0 <= usage[idle].value < usage[shared].value <= limits[shared].value
        assert usage[shared].value >= sum(client.value for client in clients().values())

        busy = latest(sent, "hw.gpu.utilization")
        assert busy.keys() == gpus.keys()
        assert all(0 <= point.value <= 1 for point in busy.values())
        assert {point.attributes["hw.gpu.task"] for point in busy.values()} == {"general"}
        for state, value in (("ok", 1), ("failed", 0)):
            of_state = latest(sent, "hw.status", **{"hw.state": state, "hw.type": "gpu"})
            assert {uuid: point.value for uuid, point in of_state.items()} == dict.fromkeys(gpus, value)
        models = latest(sent, "gpushare_gpu_info")
        assert {uuid: point.attributes["hw.model"] for uuid, point in models.items()} == {
            uuid: gpu["product"] for uuid, gpu in gpus.items()
        }
        assert "gpushare_gpu_lost" not in {point.name for point in points(sent)}, "it has become hw.status"


def above(usage: dict[str, Point], shared: str) -> dict[str, Point] | None:
    return usage if shared in usage and usage[shared].value > 0 else None
