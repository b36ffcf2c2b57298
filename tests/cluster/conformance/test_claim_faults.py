"""Claims while agent, kubelet or node are away or end, and what such an end leaves behind: conformance.md."""

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localcluster.cluster import processes
from tests.cluster import claims
from tests.cluster.claims import SIZES, claim_specs
from tests.cluster.clients.test_gate import daemon_down
from tests.cluster.harness import NODE, Harness, Share, Tenant, has_container, holds_for, wait_until
from tests.cluster.node import without_agent

pytestmark = pytest.mark.long

MEMORY = {"default": "4Gi", "max": "64Gi"}
CDI = "/var/run/cdi"


@pytest.fixture(scope="module")
def share(harness: Harness) -> Iterator[Share]:
    threads = {"default": 20, "max": 60}
    spec: dict[str, Any] = {"delivery": "ResourceClaim", "sizes": SIZES, "threads": threads, "memory": MEMORY}
    with harness.share("held", per_node=1, **spec) as share:
        yield share


@pytest.fixture
def tenant(share: Share) -> Iterator[Tenant]:
    with claims.tenant_of(share) as tenant:
        yield tenant


def start(tenant: Tenant, *names: str, **options: Any) -> None:
    tenant.start(*(claims.sized(tenant, name, "held", "small", **options) for name in names))


def check_limits(tenant: Tenant, name: str, seconds: float = 90) -> None:
    seen = tenant.wait_event(name, "limits", seconds)
    assert (seen["problems"], seen["granted"]["threads"]) == ([], 10)


def is_gone(tenant: Tenant, name: str) -> bool:
    return tenant.kubectl.find("pod", name) is None


def test_claims_that_come_and_go_without_agent_are_settled_later(harness: Harness, tenant: Tenant) -> None:
    start(tenant, "leaves", "stays")
    check_limits(tenant, "leaves")
    check_limits(tenant, "stays")
    wait_until("its health is told", lambda: health(tenant, "stays") == "Healthy", 60)
    with without_agent(harness):
        wait_until("nobody knows its health", lambda: health(tenant, "stays") == "Unknown", 60)
        tenant.kubectl.delete("pod", "leaves", wait=False)
        start(tenant, "comes")
        holds_for("it started without its agent", lambda: not has_container(tenant.kubectl.get("pod", "comes")), 5)
    check_limits(tenant, "comes")
    wait_until("its health is told again", lambda: health(tenant, "stays") == "Healthy", 60)
    wait_until("the other one is gone", lambda: is_gone(tenant, "leaves"), 60)
    wait_until("two are prepared", lambda: len(claim_specs(harness)) == 2, 60, lambda: claim_specs(harness))
    assert not tenant.events_of("stays", "gpu-error")


def health(tenant: Tenant, name: str) -> str:
    """The health of the GPU of a pod's only container, as the kubelet reports it in the pod's status."""
    statuses = tenant.kubectl.get("pod", name)["status"].get("containerStatuses") or [{}]
    told = [
        resource["health"]
        for status in statuses[0].get("allocatedResourcesStatus") or ()
        for resource in status["resources"]
    ]
    return str(told[0]) if told else ""


def test_a_pods_status_shows_the_health_of_its_claims_gpu_and_daemon(
    harness: Harness, share: Share, tenant: Tenant
) -> None:
    """The container has no process on the GPU, so that the end of the MPS daemon does not end it."""
    start(tenant, "idle", command=["sleep", "3600"])
    wait_until("it is healthy", lambda: health(tenant, "idle") == "Healthy", 60, lambda: tenant.explain("idle"))
    with daemon_down(harness, share):
        wait_until("it is not", lambda: health(tenant, "idle") == "Unhealthy", 60, lambda: tenant.explain("idle"))
    wait_until("it is again", lambda: health(tenant, "idle") == "Healthy", 60, lambda: tenant.explain("idle"))
    tenant.delete_pods("idle")


def test_an_agent_that_is_replaced_leaves_the_nodes_slice_alone(harness: Harness, share: Share) -> None:
    def slice_uid() -> str:
        return str(harness.kubectl.get("resourceslice", f"{NODE}-gpushare.dev")["metadata"]["uid"])

    before = slice_uid()
    kill_agent(harness)
    harness.wait_component("agent", 90)
    share.wait_ready()
    assert slice_uid() == before


def kill_agent(harness: Harness) -> None:
    harness.restart_pods("agent", force=True)


def kill_kubelet(harness: Harness) -> None:
    processes.replace(harness.layout, "kubelet", signal.SIGKILL)


@pytest.mark.parametrize("accident", [kill_agent, kill_kubelet])
def test_a_claim_whose_preparation_is_cut_off_is_prepared_afterwards(
    harness: Harness, share: Share, tenant: Tenant, accident: Callable[[Harness], None]
) -> None:
    """The agent keeps the kubelet's question open until the GPU's MPS daemon is ready."""
    with daemon_down(harness, share):
        wait_until("the agent has seen it", lambda: share.condition()["status"] == "False", 30)
        start(tenant, "waits")
        wait_until("it was placed", lambda: tenant.kubectl.get("pod", "waits")["spec"].get("nodeName"))
        holds_for("it started without a daemon", lambda: not has_container(tenant.kubectl.get("pod", "waits")), 3)
        accident(harness)
        harness.wait_component("agent", 90)
    check_limits(tenant, "waits")


@contextmanager
def kubelet_away(harness: Harness) -> Iterator[None]:
    """It stands still, and is started anew afterwards, with nothing but its checkpoints."""
    os.kill(processes.components(harness.layout)["kubelet"].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        kill_kubelet(harness)


def test_claims_that_come_and_go_without_kubelet_are_settled_later(harness: Harness, tenant: Tenant) -> None:
    start(tenant, "leaves", "forced", "stays")
    for name in ("leaves", "forced", "stays"):
        check_limits(tenant, name)
    with kubelet_away(harness):
        tenant.kubectl.delete("pod", "leaves", wait=False)
        tenant.kubectl.delete("pod", "forced", "--force", "--grace-period=0", wait=False)
        start(tenant, "comes", "withdrawn")
        for name in ("comes", "withdrawn"):
            wait_until("it is placed", lambda name=name: tenant.kubectl.get("pod", name)["spec"].get("nodeName"))
        tenant.kubectl.delete("pod", "withdrawn", "--force", "--grace-period=0", wait=False)
    check_limits(tenant, "comes")
    wait_until("the others are gone", lambda: is_gone(tenant, "leaves") and is_gone(tenant, "forced"), 90)
    wait_until("two are prepared", lambda: len(claim_specs(harness)) == 2, 90, lambda: claim_specs(harness))
    assert not tenant.events_of("stays", "gpu-error")


def spec_of(harness: Harness, tenant: Tenant) -> Path:
    """The CDI spec of the tenant's only prepared claim."""
    (name,) = claim_specs(harness)
    path = harness.in_node(f"{CDI}/{name}")
    assert tenant.name in path.read_text()
    return path


def test_a_claim_with_a_garbled_record_delays_none_and_goes_with_its_pod(harness: Harness, tenant: Tenant) -> None:
    start(tenant, "garbled")
    check_limits(tenant, "garbled")
    spec_of(harness, tenant).write_text('{"cdiVersion": "0.6.0", "kind": "claim.gpus')
    kill_agent(harness)
    harness.wait_component("agent", 90)
    start(tenant, "next")
    check_limits(tenant, "next")
    assert not tenant.events_of("garbled", "gpu-error")
    tenant.delete_pods("garbled", "next")


def test_the_record_of_a_claim_that_is_gone_is_removed_and_holds_no_gpu(harness: Harness, tenant: Tenant) -> None:
    """It is as after `kubeadm reset`: the kubelet has lost its checkpoint, and will never unprepare that claim."""
    start(tenant, "alive")
    check_limits(tenant, "alive")
    living = spec_of(harness, tenant)
    dead = str(uuid.uuid4())
    body = json.loads(living.read_text().replace(living.name.split("claim-")[1].removesuffix(".json"), dead))
    body["annotations"]["gpushare.dev/claim-name"] = "long-gone"
    stale = harness.in_node(f"{CDI}/gpushare.dev-claim-{dead}.json")
    stale.write_text(json.dumps(body))
    kill_agent(harness)
    harness.wait_component("agent", 90)
    wait_until("it is removed", lambda: not stale.exists(), 90)
    assert living.exists()
    start(tenant, "next")
    check_limits(tenant, "next")
