"""A claim from its allocation to its release, as others test DRA drivers: conformance.md."""

from collections.abc import Iterator
from typing import Any

import pytest

from gpushare.api.names import device_name
from localcluster.kubectl import CommandError, Object
from tests.cluster import claims
from tests.cluster.claims import HELD, SIZES, claim, claim_specs, with_claim
from tests.cluster.harness import NODE, Harness, Share, Tenant, has_container, holds_for, wait_until

pytestmark = pytest.mark.long

OWN = "lent.gpushare.dev"
SLICE = f"{NODE}-gpushare.dev"
GPUS = 2
OURS = 'device.attributes["gpushare.dev"]'
MEMORY = 'device.capacity["gpushare.dev"].memory'


@pytest.fixture(scope="module")
def share(harness: Harness) -> Iterator[Share]:
    """Both GPUs of the node."""
    amounts: dict[str, Any] = {"threads": {"default": 20, "max": 60}, "memory": {"default": "4Gi", "max": "64Gi"}}
    with harness.share("lent", delivery="ResourceClaim", sizes=SIZES, **amounts) as share:
        share.wait_ready(gpus=GPUS)
        yield share


@pytest.fixture
def tenant(share: Share) -> Iterator[Tenant]:
    with claims.tenant_of(share) as tenant:
        yield tenant
        tenant.delete_pods()
        wait_until("no claim of a template is left", lambda: not generated(tenant), 60, lambda: generated(tenant))


def generated(tenant: Tenant) -> list[str]:
    """The claims that were made for pods."""
    listed = tenant.kubectl.items("resourceclaims")
    return [claim["metadata"]["name"] for claim in listed if claim["metadata"].get("ownerReferences")]


def selecting(name: str, *expressions: str) -> Object:
    return claim(name, OWN, selectors=[{"cel": {"expression": expression}} for expression in expressions])


def gpu_of(tenant: Tenant, name: str) -> str:
    """The UUID of the GPU on which the client found its limits in force."""
    seen = tenant.wait_event(name, "limits")
    assert seen["problems"] == []
    return str(seen["observed"]["uuid"])


def allocated_device(tenant: Tenant, name: str) -> str:
    """The device of a claim; empty while it is pending."""
    status = tenant.kubectl.get("resourceclaim", name).get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    return str(results[0]["device"]) if results else ""


def reserved_for(tenant: Tenant, name: str) -> list[str]:
    status = tenant.kubectl.get("resourceclaim", name).get("status") or {}
    return [user["name"] for user in status.get("reservedFor") or []]


def test_the_slice_has_each_gpu_of_the_node_once_with_the_drivers_version(harness: Harness, share: Share) -> None:
    status = harness.gpu_node()["status"]
    devices = harness.kubectl.get("resourceslice", SLICE)["spec"]["devices"]
    assert {device["name"] for device in devices} == {device_name(gpu["uuid"]) for gpu in status["gpus"]}
    assert len(devices) == GPUS
    installed = [int(part) for part in status["driverVersion"].split(".")]
    for device in devices:
        offered = device["attributes"]["driverVersion"]["version"]
        assert [int(part) for part in offered.split(".")] == installed


def test_a_claim_selects_its_gpu_by_what_the_slice_says_of_it(harness: Harness, tenant: Tenant) -> None:
    second = max(gpu["uuid"] for gpu in harness.gpu_node()["status"]["gpus"])
    wanted = {
        "product": selecting("product", f'{OURS}.productName.matches("(?i)h200")'),
        "driver": selecting("driver", f'{OURS}.driverVersion.compareTo(semver("500.0.0")) >= 0'),
        "memory": selecting("memory", f'{MEMORY}.compareTo(quantity("100Gi")) >= 0'),
        "this": selecting("this", f'{OURS}.uuid == "{second}"'),
    }
    tenant.kubectl.create(*wanted.values())
    tenant.start(*(with_claim(tenant.pod(name, "lent", *HELD), resourceClaimName=name) for name in wanted))
    gpus = {name: gpu_of(tenant, name) for name in wanted}
    assert gpus["this"] == second


def test_a_claim_that_selects_no_gpu_stays_pending_and_takes_none(tenant: Tenant) -> None:
    tenant.kubectl.create(selecting("lost", f'{OURS}.productName == "H300"'))
    tenant.start(with_claim(tenant.pod("lost", "lent", *HELD), resourceClaimName="lost"))
    message = wait_until("it is unschedulable", lambda: tenant.unscheduled_message("lost"))
    assert "cannot allocate all claims" in message
    told = wait_until("why", lambda: pending_events(tenant, "lost"), 40)
    assert "its own selectors" in told[0]
    assert not allocated_device(tenant, "lost")


def pending_events(tenant: Tenant, name: str) -> list[str]:
    events = tenant.kubectl.items("events", "--field-selector=reason=ClaimPending")
    return [event["message"] for event in events if event["involvedObject"]["name"].startswith(name)]


@pytest.mark.parametrize("ends", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_holds_nothing_although_it_is_still_there(
    harness: Harness, share: Share, tenant: Tenant, ends: str
) -> None:
    """The pods ask by a template, by a claim that stays, and by the line for a slot, for which the scheduler makes
    the claim."""
    command = ["sh", "-c", f"gpushare-workload run limits; exit {int(ends == 'Failed')}"]
    tenant.kubectl.create(claim("kept", OWN))
    pods = {
        "templated": claims.sized(tenant, "templated", "lent", "small", command=command),
        "named": with_claim(tenant.pod("named", "lent", command=command), resourceClaimName="kept"),
        "slot": tenant.pod("slot", "lent", command=command),
    }
    tenant.start(*pods.values())
    for name in pods:
        assert tenant.wait_ended(name) == ends
        gpu_of(tenant, name)
    wait_until("no generated claim", lambda: not generated(tenant), 60, lambda: generated(tenant))
    wait_until("the kept one is free", lambda: not reserved_for(tenant, "kept"), 60)
    wait_until("nothing is prepared", lambda: not claim_specs(harness), 60, lambda: claim_specs(harness))
    assert not allocated_device(tenant, "kept")
    assert len(tenant.pods()) == len(pods)


def test_a_claim_goes_from_pod_to_pod_and_never_serves_two_at_once(harness: Harness, tenant: Tenant) -> None:
    """Kubernetes lets pods share a claim, and asks its driver only before the first of them: each would have the whole
    grant.
    """
    tenant.kubectl.create(claim("turns", OWN, {"threads": "30", "memory": "6Gi"}))

    def user(name: str) -> Object:
        arguments = ("depart", "--report-every", "0.3")
        return with_claim(tenant.pod(name, "lent", *arguments), resourceClaimName="turns")

    tenant.start(user("first"))
    tenant.wait_event("first", "progress")
    tenant.start(user("second"))
    refusal = wait_until("why it waits", lambda: refusals(tenant, "second"), 60, lambda: tenant.explain("second"))
    assert "one container of one pod" in refusal[0]
    holds_for("a claim served two pods", lambda: not has_container(tenant.kubectl.get("pod", "second")), 5)
    assert reserved_for(tenant, "turns") == ["first"]
    tenant.go_on(["first"])
    tenant.delete_pods("first")
    tenant.wait_event("second", "progress", seconds=90)
    assert reserved_for(tenant, "turns") == ["second"]


def refusals(tenant: Tenant, name: str) -> list[str]:
    return [event["message"] for event in tenant.kubernetes_events(name) if "reservedFor" in event.get("message", "")]


def test_containers_of_one_pod_have_each_its_own_part_by_its_own_claim(tenant: Tenant) -> None:
    amounts = {"main": ("30", "6Gi"), "beside": ("15", "3Gi"), "side": ("10", "2Gi")}
    for name, (threads, memory) in amounts.items():
        tenant.kubectl.create(claim(name, OWN, {"threads": threads, "memory": memory}))
    pod = tenant.pod("several", "lent", *HELD)
    [template] = pod["spec"]["containers"]

    def container(name: str, *arguments: str) -> Object:
        return {**template, "name": name, "resources": {"claims": [{"name": name}]}, "args": ["run", *arguments]}

    pod["spec"]["containers"] = [container("main", *HELD), container("beside", *HELD)]
    pod["spec"]["initContainers"] = [{**container("side", *HELD), "restartPolicy": "Always"}]
    pod["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name} for name in amounts]
    tenant.start(pod)
    for name, (threads, memory) in amounts.items():
        line = f'"threads": {threads}'
        text = wait_until(f"limits of {name}", lambda name=name: log_of(tenant, "several", name), 60)
        assert '"problems": []' in text, text
        assert line in text, (memory, text)


def test_an_init_container_that_ends_is_refused_a_claim(tenant: Tenant) -> None:
    """Nothing would let its kernels end before it is killed."""
    tenant.kubectl.create(claim("before", OWN))
    pod = with_claim(tenant.pod("early", "lent", "limits"), resourceClaimName="before")
    [container] = pod["spec"]["containers"]
    pod["spec"]["initContainers"] = [{**container, "name": "before"}]
    del container["resources"]
    with pytest.raises(CommandError, match="an init container that ends cannot use a claim"):
        tenant.start(pod)


def log_of(tenant: Tenant, pod: str, container: str) -> str:
    text = tenant.kubectl("logs", pod, f"--container={container}")
    return text if '"limits"' in text else ""


def test_replicas_that_do_not_fit_beside_each_other_get_a_gpu_each(tenant: Tenant) -> None:
    tenant.kubectl.create(template("most", {"threads": "60"}))
    pod = with_claim(tenant.pod("replica", "lent", *HELD, restart="Always"), resourceClaimTemplateName="most")
    labels = {"app": "apart"}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "apart"},
        "spec": {
            "replicas": GPUS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    }
    tenant.kubectl.create(body)
    names = wait_until("both run", lambda: running(tenant, GPUS), 90)
    assert len({gpu_of(tenant, name) for name in names}) == GPUS
    tenant.kubectl.delete("deployment", "apart")


def running(tenant: Tenant, count: int) -> list[str]:
    names = [pod["metadata"]["name"] for pod in tenant.running()]
    return names if len(names) == count else []


def template(name: str, amounts: dict[str, str]) -> Object:
    spec = claim(name, OWN, amounts)["spec"]
    metadata = {"name": name}
    kind = "ResourceClaimTemplate"
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": {"spec": spec}}


def test_each_completion_of_a_job_gets_a_part_and_gives_it_back(tenant: Tenant) -> None:
    pod = claims.sized(tenant, "one", "lent", "small", "limits")
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "twice"},
        "spec": {"completions": 2, "parallelism": 1, "backoffLimit": 0, "template": {"spec": pod["spec"]}},
    }
    tenant.kubectl.create(body)
    status = wait_until("its end", lambda: ended(tenant, "twice"), 120, lambda: tenant.pods())
    assert (status.get("succeeded"), status.get("failed", 0)) == (2, 0)
    for done in tenant.pods():
        gpu_of(tenant, done["metadata"]["name"])
    tenant.kubectl.delete("job", "twice")


def ended(tenant: Tenant, job: str) -> Object:
    status: Object = tenant.kubectl.get("job", job).get("status") or {}
    over = any(
        condition["status"] == "True" and condition["type"] in ("Complete", "Failed")
        for condition in status.get("conditions", [])
    )
    return status if over else {}


def test_a_pod_of_a_name_that_was_deleted_by_force_gets_a_part_again(harness: Harness, tenant: Tenant) -> None:
    """Its claim is gone from the API before the kubelet has unprepared it."""
    for _ in range(2):
        tenant.start(claims.sized(tenant, "again", "lent", "small"))
        gpu_of(tenant, "again")
        tenant.kubectl.delete("pod", "again", "--force", "--grace-period=0")
    wait_until("nothing is prepared", lambda: not claim_specs(harness), 60, lambda: claim_specs(harness))


def test_a_pod_whose_containers_use_no_claim_runs_without_a_gpu(harness: Harness, tenant: Tenant) -> None:
    """Its claim is prepared all the same, and holds a part as long as the pod is there."""
    pod = claims.sized(tenant, "idle", "lent", "small", command=["sleep", "3600"])
    del pod["spec"]["containers"][0]["resources"]
    tenant.start(pod)
    wait_until("it runs", lambda: has_container(tenant.kubectl.get("pod", "idle")), 60, lambda: tenant.explain("idle"))
    assert len(claim_specs(harness)) == 1
