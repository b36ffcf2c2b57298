"""A HorizontalPodAutoscaler scales clients by a metric of gpushare, as docs/autoscaling.md says (examples/autoscaling).

Opt-in (`make hpa-test`), because building Prometheus and prometheus-adapter takes minutes. Prometheus scrapes the
cluster as the chart's PodMonitor says, but more often; adapter and autoscaler are Kubernetes' own.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from localcluster.kubectl import Object
from localcluster.paths import REPOSITORY, cache_root
from localcluster.programs.build import HELM, PROMETHEUS, build_adapter, build_component
from localcluster.stack import prepare_namespace
from tests.cluster import claims, conftest
from tests.cluster.harness import Harness, Share, Tenant, condition, has_container, own_cluster, wait_until
from tests.prometheus import chart
from tests.prometheus.server import Prometheus, running

CLUSTER = f"{conftest.CLUSTER}-hpa"
EXAMPLES = REPOSITORY / "examples" / "autoscaling"
MONITORING = "monitoring"
ADAPTER = Path(__file__).parent / "prometheus-adapter.yaml"
SERVICE = "v1beta1.external.metrics.k8s.io"
SCRAPE = "5s"
WITHOUT_PAUSE = ("depart", "--role", "victim", "--kernel-ms", "100")
BUSY = 4
"""Replicas at a target of a quarter of a busy GPU, with one GPU, which they keep busy."""


def example(name: str) -> Object:
    return dict(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()))


@pytest.fixture(scope="module")
def prometheus(fresh: Harness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Scrapes the cluster, whose pods reach it."""
    helm = build_component(HELM, cache_root()) / "helm"
    scrape = chart.scrape_config(chart.manifest(helm, "podmonitor.yaml"), fresh.layout.kubeconfig)
    scrape["scrape_interval"] = SCRAPE
    program = build_component(PROMETHEUS, cache_root()) / "prometheus"
    with running(program, tmp_path_factory.mktemp("prometheus"), [scrape], host=fresh.layout.network.host_ip) as server:
        yield server


@pytest.fixture(scope="module")
def fresh(request: pytest.FixtureRequest) -> Iterator[Harness]:
    if not request.config.getoption("--hpa"):
        pytest.skip("builds Prometheus and its adapter: make hpa-test")
    with own_cluster(CLUSTER, build_adapter(cache_root())) as harness:
        yield harness


@pytest.fixture(scope="module")
def metrics(fresh: Harness, prometheus: Prometheus) -> Iterator[Harness]:
    """A cluster whose external metrics prometheus-adapter answers, by the rules of the example."""
    prepare_namespace(fresh.kubectl, MONITORING, "restricted")
    rules = json.dumps({"externalRules": example("adapter")["rules"]["external"]})
    files = {"config.yaml": rules, "prometheus": prometheus.address}
    configuration = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "adapter"}, "data": files}
    fresh.kubectl.within(MONITORING).apply(configuration)
    fresh.kubectl("apply", "-f", str(ADAPTER))
    wait_until("the adapter answers", lambda: available(fresh), 90, lambda: fresh.kubectl.get("apiservice", SERVICE))
    yield fresh
    fresh.kubectl.delete("apiservice", SERVICE)  # what is announced and does not answer keeps namespaces from ending


def available(harness: Harness) -> bool:
    return condition(harness.kubectl.get("apiservice", SERVICE), "Available").get("status") == "True"


def deployment(*arguments: str) -> Object:
    """The example's, by the cluster's image, with other arguments."""
    document = example("deployment")
    [container] = document["spec"]["template"]["spec"]["containers"]
    container["args"] = ["run", *arguments]
    return document


def computing(tenant: Tenant) -> int:
    """Pods of the Deployment that stay and whose container runs."""
    return sum(1 for pod in tenant.running() if has_container(pod) and "deletionTimestamp" not in pod["metadata"])


def test_busy_clients_get_more_replicas_and_idle_ones_fewer(metrics: Harness) -> None:
    share = Share(metrics, "answers")
    metrics.kubectl("apply", "-f", str(EXAMPLES / "share.yaml"))
    try:
        share.wait_ready()
        with metrics.namespace("answers") as tenant:
            idle, busy = deployment(*claims.HELD), deployment(*WITHOUT_PAUSE)
            tenant.kubectl.apply(idle)
            tenant.kubectl("apply", "-f", str(EXAMPLES / "autoscaler.yaml"))

            def told() -> Object:
                status: Object = tenant.kubectl.get("hpa", "answers").get("status", {})
                return status

            def scaled(replicas: int) -> bool:
                return told().get("desiredReplicas") == replicas == computing(tenant)

            def active() -> bool:
                return condition({"status": told()}, "ScalingActive").get("status") == "True"

            wait_until("the metric is read", active, 90, told)
            assert computing(tenant) == 1
            tenant.kubectl.apply(busy)
            wait_until("one replica for each quarter of the GPUs that are busy", lambda: scaled(BUSY), 180, told)
            tenant.kubectl.apply(idle)
            wait_until("one replica", lambda: scaled(1), 240, told)
            tenant.kubectl.delete("hpa,deployment", "answers")
    finally:
        share.delete()
