"""What a tenant hears at once, and may see with rights in a namespace alone: warnings, and the GPU."""

import copy
import json
import subprocess
from typing import Any

import pytest

from localcluster.kubectl import CommandError, Object
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.rights.policies.requests import refusal

REFUSED = "will be refused: spec.containers[0].resources.limits[gpushare.dev/tenantz]: no GpuShare"


@pytest.fixture(scope="module")
def share(harness: Harness) -> Any:
    with harness.share("tenants", per_node=1, per_gpu=4) as share:
        yield share


@pytest.fixture(scope="module")
def tenant(harness: Harness, share: Share) -> Any:
    with harness.namespace() as tenant:
        yield tenant


def warned(tenant: Tenant, *arguments: str, body: Object | None = None) -> str:
    """What kubectl prints beside its answer."""
    done = subprocess.run(
        ["kubectl", f"--namespace={tenant.name}", *arguments],
        env=dict(tenant.harness.stack.environment),
        input=json.dumps(body) if body else None,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def owner(tenant: Tenant, kind: str, share: str, **metadata: Any) -> Object:
    pod = tenant.pod("p", share, "limits")
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels, **metadata}, "spec": pod["spec"]}
    made: Object = {"metadata": {"name": "web"}, "kind": kind, "apiVersion": "apps/v1"}
    if kind == "CronJob":
        spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}}
        return {**made, "apiVersion": "batch/v1", "spec": spec}
    if kind == "Job":
        return {**made, "apiVersion": "batch/v1", "spec": {"template": {"spec": pod["spec"]}}}
    pod["spec"]["restartPolicy"] = "Always"
    service = {"serviceName": "web"} if kind == "StatefulSet" else {}
    return {**made, "spec": {"selector": {"matchLabels": labels}, "template": template, **service}}


DRY = ("create", "--dry-run=server", "-f", "-")


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_an_owners_author_is_warned_of_what_its_pods_get_if_it_is_wrong(tenant: Tenant, kind: str) -> None:
    told = warned(tenant, *DRY, body=owner(tenant, kind, "tenantz"))
    assert f'Warning: pods of this {kind} {REFUSED} "tenantz"; did you mean "tenants"?' in told
    assert warned(tenant, *DRY, body=owner(tenant, kind, "tenants")) == ""


def test_a_new_template_is_warned_about_and_new_replicas_are_not(tenant: Tenant) -> None:
    wrong = owner(tenant, "Deployment", "tenantz")
    wrong["spec"]["replicas"] = 0
    assert REFUSED in warned(tenant, "apply", "-f", "-", body=wrong)
    try:
        assert "refused" not in warned(tenant, "scale", "deployment", "web", "--replicas=1", "--dry-run=server")
        again = copy.deepcopy(wrong)
        again["spec"]["template"]["metadata"]["annotations"] = {"gpushare.dev/thread": "20"}
        assert REFUSED in warned(tenant, "apply", "--dry-run=server", "-f", "-", body=again)
    finally:
        tenant.kubectl.delete("deployment", "web")


def test_a_pod_without_effect_or_that_endangers_others_gets_a_warning(tenant: Tenant) -> None:
    hidden = [{"name": "CUDA_VISIBLE_DEVICES", "value": "1"}]
    pod = tenant.pod("p", "tenants", "limits", annotations={"gpushare.dev/mem": "4Gi"}, grace=0, env=hidden)
    pod["spec"]["containers"][0]["lifecycle"] = {"preStop": {"exec": {"command": ["true"]}}}
    told = warned(tenant, *DRY, body=pod)
    for part in ('did you mean "gpushare.dev/memory"?', "terminationGracePeriodSeconds", "preStop", "(error 100)"):
        assert part in told, told


def test_a_slot_of_zero_is_as_good_as_none(tenant: Tenant) -> None:
    pod = tenant.pod("p", "nowhere", "limits")
    pod["spec"]["containers"][0]["resources"]["limits"] = {"gpushare.dev/nowhere": "0"}
    assert warned(tenant, *DRY, body=pod) == ""


def test_an_ephemeral_containers_author_is_told_that_it_has_no_gpu(tenant: Tenant) -> None:
    tenant.start(tenant.pod("debugged", "tenants", "limits", "--hold", "3600"))
    try:
        tenant.wait_event("debugged", "limits")
        image = tenant.harness.stack.workload_image
        profile = ("--profile=restricted", f"--image={image}", "--image-pull-policy=IfNotPresent")
        told = warned(tenant, "debug", "debugged", *profile, "--", "gpushare-workload", "list")
        assert "an ephemeral container no resources" in told
    finally:
        tenant.delete_pods("debugged")


def test_a_pods_event_names_its_gpu_its_grant_and_how_many_are_beside_it(tenant: Tenant) -> None:
    names = tenant.neighbours("tenants", 2)
    try:
        for name in names:
            event = wait_until("the event", lambda name=name: granted(tenant, name))[0]
            assert "got 25% of the SMs, 8Gi of memory and 1 process on GPU GPU-" in event["message"]
            assert "pod" not in event["message"]
            (status,) = tenant.kubectl.get("pod", name)["status"]["containerStatuses"]
            (resource,) = status["allocatedResourcesStatus"]
            uuid = resource["resources"][0]["resourceID"].partition("::")[0]
            assert (resource["name"], f"on GPU {uuid}, " in event["message"]) == ("gpushare.dev/tenants", True)
        assert any("1 other container" in granted(tenant, name)[0]["message"] for name in names)
    finally:
        tenant.delete_pods(*names)


def granted(tenant: Tenant, name: str) -> list[Object]:
    return [event for event in tenant.kubernetes_events(name) if event["reason"] == "GpuPartGranted"]


def test_viewers_of_the_cluster_read_shares_and_of_a_namespace_no_others(harness: Harness, tenant: Tenant) -> None:
    harness.kubectl("create", "clusterrolebinding", "viewers", "--clusterrole=view", "--group=viewers")
    tenant.kubectl("create", "rolebinding", "viewers", "--clusterrole=view", "--user=inside")
    try:
        everywhere = tenant.kubectl.acting_as("--as=somebody", "--as-group=viewers")
        wait_until("the role is aggregated", lambda: "tenants" in everywhere("get", "gpushares", "-o", "name"))
        inside = tenant.kubectl.acting_as("--as=inside")
        assert inside("get", "pods,events") is not None
        for who, verb, resource in ((inside, "list", "gpunodes"), (everywhere, "list", "gpunodes")):
            assert may(who, verb, resource) is False
        assert [may(everywhere, verb, "gpushares") for verb in ("get", "patch", "delete")] == [True, False, False]
    finally:
        harness.kubectl.delete("clusterrolebinding", "viewers")


def may(who: Any, verb: str, resource: str) -> bool:
    try:
        return str(who("auth", "can-i", verb, resource)).strip() == "yes"
    except CommandError:  # kubectl says no by its exit status
        return False


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_the_internal_resource_is_refused_outside_our_namespace(harness: Harness, kind: str) -> None:
    with harness.namespace() as tenant:
        pod = tenant.pod("thief", "none", "limits")
        (container,) = pod["spec"]["containers"]
        thief = container | {"name": "thief", "resources": {"limits": {"internal.gpushare.dev/mps": "1"}}}
        pod["spec"] |= {"containers": [container | {"resources": {}}]} | {kind: [thief]}
        message = refusal(tenant.kubectl, "create", "-f", "-", body=pod)
        assert "ask for gpushare.dev/<share> instead" in message
