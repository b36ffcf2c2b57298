"""What Prometheus would scrape agrees with what kubectl shows, and is gone when its pods are."""

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from localcluster.kubectl import CommandError
from localcluster.stack import NAMESPACE
from tests.cluster.harness import Harness, wait_until

PORT = 9408
CHARGED = "gpushare_charged_gpu_seconds_total"
"""It stays for an hour after the last charge."""
IDLE = "__idle__"


class Scraped:
    """The series of all pods of a component, as they are now."""

    def __init__(self, harness: Harness, component: str) -> None:
        pods = harness.pods_of(component)
        assert pods, component
        self.samples = [sample for pod in pods for sample in scrape(harness, pod["metadata"]["name"])]

    def values(self, name: str, **labels: str) -> list[float]:
        return [
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def value(self, name: str, **labels: str) -> float:
        (value,) = self.values(name, **labels) or [-1.0]
        return value

    def names(self, **labels: str) -> set[str]:
        return {sample.name for sample in self.samples if labels.items() <= sample.labels.items()}


def scrape(harness: Harness, pod: str) -> Iterator[Any]:
    """Through the API server's pod proxy, as nobody outside of the cluster reaches a pod."""
    text = harness.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:{PORT}/proxy/metrics").decode()
    for family in text_string_to_metric_families(text):
        yield from family.samples


def test_scraped_figures_are_those_of_kubectl_and_go_with_their_pods(harness: Harness) -> None:
    with harness.share("seen", per_node=1, per_gpu=4) as share, harness.namespace() as tenant:
        share.wait_capacity(4)
        names = tenant.neighbours("seen", 2, annotations={"gpushare.dev/memory": "4Gi"})
        wait_until("two slots are told as used", lambda: share.get()["status"]["slots"].get("used") == 2)

        agent = wait_until("the agent has seen both clients", lambda: both_clients(harness), 20)
        assert agent.value("gpushare_slots", share="seen") == 4
        assert agent.value("gpushare_slots_offered", share="seen") == harness.capacity("seen") == 4
        assert agent.value("gpushare_slots_held", share="seen") == 2
        assert agent.value("gpushare_daemon_ready", share="seen") == 1
        assert agent.value("gpushare_bypassing_processes", share="seen") == 0
        assert agent.value("gpushare_nvml_up") == agent.value("gpushare_kubelet_up") == 1
        assert agent.value("gpushare_allocation_ready_seconds_count") >= 2
        for name in names:
            seen = tenant.events_of(name, "limits")[0]
            of_pod = {"namespace": tenant.name, "pod": name, "container": "app", "share": "seen"}
            assert agent.value("gpushare_container_memory_granted_bytes", **of_pod) == seen["granted"]["memory"]
            assert agent.value("gpushare_container_threads_granted_ratio", **of_pod) == 0.25
            assert 0 < agent.value("gpushare_container_memory_used_bytes", **of_pod) <= seen["granted"]["memory"]

        operator, status = Scraped(harness, "operator"), share.get()["status"]
        assert operator.values("gpushare_operator_leader").count(1) == 1
        assert operator.value("gpushare_share_condition", share="seen", condition="Ready") == 1
        assert operator.value("gpushare_share_gpus_ready", share="seen") == status["gpus"]["ready"] == 1
        assert operator.value("gpushare_share_slots", share="seen") == status["slots"]["total"]
        assert operator.value("gpushare_share_slots_held", share="seen") == status["slots"]["used"]

        ended = agent.value("gpushare_clients_ended_total", cause="departure")
        tenant.delete_pods(*names)
        wait_until(
            "the pods' series are gone", lambda: Scraped(harness, "agent").names(namespace=tenant.name) == {CHARGED}
        )
        assert Scraped(harness, "agent").value("gpushare_clients_ended_total", cause="departure") >= ended
    wait_until("the share's series are gone", lambda: Scraped(harness, "agent").names(share="seen") == {CHARGED})
    wait_until("the share's series are gone", lambda: not Scraped(harness, "operator").names(share="seen"))


def both_clients(harness: Harness) -> Scraped | None:
    agent = Scraped(harness, "agent")
    return agent if agent.value("gpushare_mps_clients", share="seen") == 2 else None


def test_refused_pods_are_counted_by_what_was_wrong(harness: Harness) -> None:
    def refusals() -> float:
        name = "gpushare_admission_refusals_total"
        return sum(Scraped(harness, "webhook").values(name, endpoint="mutate-pods", reason="Share"))

    with harness.namespace() as tenant:
        before = refusals()
        with pytest.raises(CommandError, match='no GpuShare "nowhere"'):
            tenant.start(tenant.pod("lost", "nowhere", "depart"))
        assert refusals() == before + 1
    expiry = Scraped(harness, "webhook").values("gpushare_webhook_certificate_expiry_timestamp_seconds")
    assert len(expiry) == 2, "every replica tells of its own certificate"
    assert min(expiry) > 1.7e9


def test_of_two_operators_one_leads_and_it_alone_tells_of_shares(harness: Harness) -> None:
    def leaders() -> list[float]:
        return sorted(Scraped(harness, "operator").values("gpushare_operator_leader"))

    with harness.share("led", per_node=1):
        try:
            harness.system("scale", "deployment", "gpushare-operator", "--replicas=2")
            wait_until("one leads, one waits", lambda: leaders() == [0, 1], 60, leaders)
            told = Scraped(harness, "operator").values("gpushare_share_condition", share="led", condition="Ready")
            assert told == [1]
        finally:
            harness.system("scale", "deployment", "gpushare-operator", "--replicas=1")
        wait_until("one is left and leads", lambda: leaders() == [1], 90, leaders)


@pytest.mark.long
def test_a_slot_is_charged_before_its_start_and_beyond_restarts(harness: Harness) -> None:
    """Its image cannot be pulled; so its container never starts, and nobody else gets the slot."""
    with harness.share("paid", per_node=1, per_gpu=4) as share, harness.namespace() as tenant:
        share.wait_capacity(4)
        waits = tenant.pod("waits", "paid", "depart")
        waits["spec"]["containers"][0] |= {"image": "registry.example.com/none:1", "imagePullPolicy": "Never"}
        tenant.start(waits)
        wait_until("charges are shown", lambda: charged(Scraped(harness, "agent"), tenant.name) > 0, 200)
        assert part_charged(harness, tenant.name) == pytest.approx(0.25, abs=0.01)

        before = charged(Scraped(harness, "agent"), tenant.name)
        harness.restart_pods("operator", force=True)
        harness.wait_component("operator")
        assert charged(Scraped(harness, "agent"), tenant.name) > before

        harness.restart_pods("agent")
        harness.wait_component("agent")
        wait_until("the new agent shows charges", lambda: charged(Scraped(harness, "agent"), tenant.name) > 0, 200)
        assert part_charged(harness, tenant.name) == pytest.approx(0.25, abs=0.01)
        assert tenant.pods()[0]["status"]["phase"] == "Pending"

        tenant.delete_pods("waits")
        wait_until("nothing more is charged", lambda: part_charged(harness, tenant.name) == 0)


def charged(agent: Scraped, namespace: str) -> float:
    """GPU-seconds of the share `paid`; below 0: there is no series."""
    return agent.value(CHARGED, namespace=namespace, share="paid")


def part_charged(harness: Harness, namespace: str) -> float:
    """The namespace's part of the GPU's time from now on, over some seconds; nobody has the rest."""
    before = Scraped(harness, "agent")

    def passed() -> list[float]:
        after = Scraped(harness, "agent")
        return [charged(after, name) - charged(before, name) for name in (namespace, IDLE)]

    mine, idle = wait_until("time passes", lambda: parts if sum(parts := passed()) > 5 else None)
    return mine / (mine + idle)
