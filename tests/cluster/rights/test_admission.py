"""Bad input is refused at once, with a message that names the field, the value and what to do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from localcluster.kubectl import CommandError
from tests.cluster.harness import Harness, Share, Tenant, gpu_share, wait_until
from tests.cluster.node import processes_of_pod

THREADS, MEMORY = "gpushare.dev/threads", "gpushare.dev/memory"


@pytest.fixture(scope="module")
def share(harness: Harness) -> Any:
    memory = {"default": "8Gi", "max": "8Gi"}
    with harness.share("inference", memory=memory, allowedNamespaces={"matchLabels": {"team": "ml"}}) as share:
        yield share


@pytest.fixture(scope="module")
def tenant(harness: Harness, share: Share) -> Any:
    with harness.namespace(team="ml") as tenant:
        yield tenant


def refusal(tenant: Tenant, pod: dict[str, Any]) -> str:
    with pytest.raises(CommandError) as refused:
        tenant.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    return refused.value.text


@pytest.mark.parametrize(
    ("annotations", "parts"),
    [
        ({THREADS: "80"}, [THREADS, '"80"', "50"]),
        ({THREADS: "12.5"}, [THREADS, '"12.5"', "whole"]),
        ({THREADS: "abc"}, [THREADS, '"abc"', "whole"]),
        ({THREADS: "0"}, [THREADS, '"0"', "1"]),
        ({MEMORY: "16GB"}, [MEMORY, "16GB", "16Gi"]),
        ({MEMORY: "-1"}, [MEMORY, "-1"]),
        ({MEMORY: "64Gi"}, [MEMORY, "64Gi", "8Gi"]),
        ({MEMORY: "100Mi"}, [MEMORY, "100Mi", "context"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_an_annotation_out_of_bounds_is_refused_by_name(
    tenant: Tenant, annotations: dict[str, str], parts: list[str]
) -> None:
    message = refusal(tenant, tenant.pod("p", "inference", "limits", annotations=annotations))
    for part in parts:
        assert part in message, message


def test_an_unknown_share_is_refused_with_the_one_that_was_meant(tenant: Tenant) -> None:
    message = refusal(tenant, tenant.pod("p", "inferense", "limits"))
    assert 'no GpuShare "inferense"; did you mean "inference"?' in message


def test_a_second_slot_an_init_container_and_own_variables_are_refused(tenant: Tenant) -> None:
    two = tenant.pod("p", "inference", "limits")
    two["spec"]["containers"][0]["resources"]["limits"]["gpushare.dev/inference"] = "2"
    assert '"2"' in refusal(tenant, two)

    initial = tenant.pod("p", "inference", "limits")
    initial["spec"]["initContainers"] = [initial["spec"]["containers"][0] | {"name": "first"}]
    assert "initContainers" in refusal(tenant, initial)

    own = [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "100"}]
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in refusal(tenant, tenant.pod("p", "inference", "limits", env=own))

    beside = tenant.pod("p", "inference", "limits")
    beside["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    assert "nvidia.com/gpu" in refusal(tenant, beside)


def test_a_foreign_namespace_is_refused_by_name(harness: Harness, share: Share) -> None:
    with harness.namespace(team="web") as foreign:
        message = refusal(foreign, foreign.pod("p", "inference", "limits"))
        assert foreign.name in message
        assert "team" in message


@pytest.mark.parametrize("written", ["1536Mi", "1.5Gi"])
def test_both_ways_to_write_1536_mib_are_granted_as_1536_mib(tenant: Tenant, written: str) -> None:
    name = written.lower().replace(".", "-")
    tenant.start(tenant.pod(name, "inference", "limits", annotations={MEMORY: written}))
    assert tenant.wait_event(name, "limits")["granted"]["memory"] == 1536 << 20


def test_an_annotation_of_30_percent_arrives_as_the_clients_limit(tenant: Tenant) -> None:
    tenant.start(tenant.pod("thirty", "inference", "limits", annotations={THREADS: "30"}))
    seen = tenant.wait_event("thirty", "limits")
    assert seen["granted"]["threads"] == 30
    assert seen["observed"]["sms"] == 38
    assert seen["problems"] == []


@pytest.mark.parametrize("own_users", [False, True], ids=["of the node", "of a user namespace"])
def test_a_client_may_be_root(harness: Harness, share: Share, own_users: bool) -> None:
    with harness.namespace("rooted", enforce="baseline", team="ml") as tenant:
        pod = tenant.pod("root", "inference", "limits", "--hold", "20", user=0)
        pod["spec"]["securityContext"] = {"runAsUser": 0}
        pod["spec"]["containers"][0].pop("securityContext")
        pod["spec"]["hostUsers"] = not own_users
        tenant.start(pod)
        assert tenant.wait_event("root", "limits")["problems"] == []
        uid = tenant.kubectl.get("pod", "root")["metadata"]["uid"]
        [client] = processes_of_pod(harness, uid, b"limits")
        status = harness.in_node(f"/proc/{client}/status").read_text()
        assert ("Uid:\t0\t" in status) is not own_users


def test_a_changed_annotation_is_told_to_have_no_effect(tenant: Tenant) -> None:
    tenant.start(tenant.pod("changed", "inference", "limits", "--hold", "3600"))
    try:
        with pytest.raises(CommandError) as told:
            tenant.kubectl("annotate", "pod", "changed", f"{THREADS}=10", "--warnings-as-errors")
        assert f"metadata.annotations[{THREADS}]: has no effect once the pod is created" in told.value.text
        assert MEMORY not in told.value.text
        tenant.kubectl("label", "pod", "changed", "a=b", "--warnings-as-errors")
    finally:
        tenant.delete_pods("changed")


@contextmanager
def no_webhook(harness: Harness) -> Iterator[None]:
    harness.system("scale", "deployment", "gpushare-webhook", "--replicas=0")
    try:
        selector = "--selector=app.kubernetes.io/component=webhook"
        wait_until("no webhook", lambda: not harness.system.items("pods", selector), seconds=60)
        yield
    finally:
        harness.system("scale", "deployment", "gpushare-webhook", "--replicas=2")
        harness.wait_component("webhook")


def test_pods_without_a_slot_start_although_the_webhook_is_down(harness: Harness) -> None:
    """An outage of ours touches nobody else: the webhook is not even asked about them."""
    with no_webhook(harness), harness.namespace("other") as other:
        pod = other.pod("plain", "x", "list", command=["gpushare-workload", "list"])
        del pod["spec"]["containers"][0]["resources"]
        other.start(pod)
        with pytest.raises(CommandError, match="gpushare"):
            other.start(other.pod("slot", "inference", "limits"))


def test_a_job_that_has_a_slot_ends_although_the_webhook_is_down(harness: Harness, tenant: Tenant) -> None:
    """The Job controller takes its finalizer off the pod, which is an update of it."""
    pod = tenant.pod("job", "inference", "limits", "--hold", "3600")
    spec = {"template": {"spec": pod["spec"]}, "backoffLimit": 0}
    tenant.kubectl.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec})
    selector = "--selector=batch.kubernetes.io/job-name=job"

    def running() -> list[dict[str, Any]]:
        return [pod for pod in tenant.kubectl.items("pods", selector) if pod["status"].get("phase") == "Running"]

    (job_pod,) = wait_until("the job's pod runs", running, seconds=90)
    assert job_pod["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    with no_webhook(harness):
        tenant.kubectl.delete("pods", selector, wait=False)
        wait_until("the pod is gone", lambda: not tenant.kubectl.items("pods", selector), seconds=60)
        with pytest.raises(CommandError, match="gpushare"):
            tenant.start(tenant.pod("slot", "inference", "limits"))
    tenant.kubectl.delete("job", "job")


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ({"clients": {"perGpu": 8, "threads": {"default": 60, "max": 50}, "memory": {"default": "8Gi"}}}, "default"),
        ({"clients": {"perGpu": 16, "processes": 4, "memory": {"default": "1Gi"}}}, "processes"),
        ({"clients": {"perGpu": 8, "memory": {"default": "256Mi"}}}, "512Mi"),
        ({"clients": {"perGpu": 8, "memory": {"default": "8GB"}}}, "8GB"),
        ({"clients": {"perGpu": 0, "memory": {"default": "8Gi"}}}, "perGpu"),
        ({"clients": {"perGpu": 8, "memory": {"default": "8Gi", "max": "4Gi"}}}, "max"),
    ],
)
def test_a_share_out_of_bounds_is_refused_by_the_field(harness: Harness, spec: dict[str, Any], part: str) -> None:
    with pytest.raises(CommandError) as refused:
        harness.kubectl.create(gpu_share("bad", spec))
    assert part in refused.value.text


def test_a_shares_delivery_cannot_be_changed(harness: Harness, share: Share) -> None:
    with pytest.raises(CommandError, match="delivery"):
        harness.kubectl("patch", "gpushare", "inference", "--type=merge", "-p", '{"spec":{"delivery":"ResourceClaim"}}')


def test_a_name_that_cannot_become_a_resource_is_refused(harness: Harness) -> None:
    with pytest.raises(CommandError, match="name"):
        harness.kubectl.create(gpu_share("2fast", {"clients": {"perGpu": 8, "memory": {"default": "8Gi"}}}))
