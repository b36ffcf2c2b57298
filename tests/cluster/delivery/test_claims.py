"""Shares delivered by ResourceClaim, as users meet them: classes, named sizes, refusals, quota, and their end."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.kubectl import CommandError, Object
from tests.cluster import claims
from tests.cluster.claims import SIZES
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.tools.test_kubectl import why

MARK = "resource.kubernetes.io/extended-resource-claim"
OWN, SMALL = "claimed.gpushare.dev", "small.claimed.gpushare.dev"


@pytest.fixture(scope="module")
def share(harness: Harness) -> Iterator[Share]:
    """Open to namespaces of team ml."""
    allowed = {"matchLabels": {"team": "ml"}}
    spec: dict[str, Any] = {"delivery": "ResourceClaim", "sizes": SIZES, "allowedNamespaces": allowed}
    with harness.share("claimed", **spec) as share:
        yield share


@pytest.fixture(scope="module")
def tenant(harness: Harness, share: Share) -> Iterator[Tenant]:
    with harness.namespace("claims", team="ml") as tenant:
        claims.wait_template(tenant, "small", "claimed")
        yield tenant


def claim(name: str, device_class: str = OWN, capacity: dict[str, str] | None = None, **exactly: Any) -> Object:
    return claims.claim(name, device_class, capacity, **exactly)


def dry_run(tenant: Tenant, body: Object) -> Object:
    created: Object = json.loads(
        tenant.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(body))
    )
    return created


def test_a_share_gets_classes_and_a_template_of_each_size_where_allowed(harness: Harness, tenant: Tenant) -> None:
    own = harness.kubectl.get("deviceclass", OWN)["spec"]
    assert own["extendedResourceName"] == "gpushare.dev/claimed"
    assert "extendedResourceName" not in harness.kubectl.get("deviceclass", SMALL)["spec"]
    template = tenant.kubectl.get("resourceclaimtemplate", "small.claimed")
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"threads": "10", "memory": "2Gi"}
    with harness.namespace("others", team="web") as other:
        harness.kubectl("label", "namespace", other.name, "team=ml", "--overwrite")
        wait_until("a template after the label", lambda: other.kubectl.find("resourceclaimtemplate", "large.claimed"))
        harness.kubectl("label", "namespace", other.name, "team=web", "--overwrite")
        wait_until("no template", lambda: not other.kubectl.items("resourceclaimtemplates"))


def test_a_claim_of_a_size_is_filled_in(tenant: Tenant) -> None:
    (request,) = dry_run(tenant, claim("mine", SMALL))["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"threads": "10", "memory": "2Gi"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (claim("a", capacity={"threads": "51"}), ["capacity.requests[threads]", '"51"', "50 percent", "claimed"]),
        (claim("a", capacity={"memory": "9Gi"}), ["capacity.requests[memory]", '"9Gi"', "8Gi"]),
        (claim("a", SMALL, {"threads": "11"}), ['"11"', 'size "small"', "10"]),
        (claim("a", "smal.claimed.gpushare.dev"), ['no size "smal"', 'did you mean "small"?']),
        (claim("a", count=2), ["exactly.count", '"2"', "write 1"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_claim_that_cannot_be_granted_is_refused_by_name(tenant: Tenant, wrong: Object, words: list[str]) -> None:
    with pytest.raises(CommandError) as refused:
        dry_run(tenant, wrong)
    for word in words:
        assert word in refused.value.text


def test_nobody_but_who_binds_pods_marks_a_claim_as_the_schedulers(harness: Harness, tenant: Tenant) -> None:
    """A claim so marked has a request for each container: a tenant's would put one container on two GPUs."""
    writer = ["create", "role", "claims", "--verb=create,update,patch,get", "--resource=resourceclaims.resource.k8s.io"]
    tenant.kubectl(*writer)
    tenant.kubectl("create", "rolebinding", "claims", "--role=claims", "--user=mallory")
    two = claim("two", "claimed.gpushare.dev")
    requests = two["spec"]["devices"]["requests"]
    requests.append(requests[0] | {"name": "again"})
    marked = {**two, "metadata": {"name": "two", "annotations": {MARK: "true"}}}
    create = ("create", "--dry-run=server", "-f", "-")
    mallory = tenant.kubectl.acting_as("--as=mallory")
    with pytest.raises(CommandError, match="2 requests: a claim of gpushare's classes has exactly one"):
        mallory(*create, stdin=json.dumps(two))
    with pytest.raises(CommandError, match="marks the scheduler's own claims"):
        mallory(*create, stdin=json.dumps(marked))
    tenant.kubectl.acting_as("--as=system:kube-scheduler")(*create, stdin=json.dumps(marked))
    foreign = claim("foreign", "gpu.example.com")
    mallory(*create, stdin=json.dumps({**foreign, "metadata": {"name": "foreign", "annotations": {MARK: "true"}}}))


def test_quota_counts_each_size_exactly_and_the_share_as_a_whole(harness: Harness, tenant: Tenant) -> None:
    hard = {f"{SMALL}.deviceclass.resource.k8s.io/devices": "1", "requests.gpushare.dev/claimed": "2"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": hard}}
    tenant.kubectl.create(quota)
    wait_until(
        "the quota is counted", lambda: tenant.kubectl.get("resourcequota", "gpus").get("status", {}).get("hard")
    )
    try:
        tenant.kubectl.create(claim("small-1", SMALL))
        with pytest.raises(CommandError, match="exceeded quota: gpus"):
            dry_run(tenant, claim("small-2", SMALL))
        tenant.start(claims.sized(tenant, "refused", "claimed", "small"))
        refused = why(harness, tenant, "refused", "exceeded quota: gpus")
        assert refused["sentence"].startswith("its ResourceClaim of template small.claimed cannot be made")
        assert "kubectl describe resourcequota" in refused["hint"]
        tenant.delete_pods("refused")
        tenant.kubectl.create(claim("own-1"), claim("own-2", capacity={"threads": "50"}))
        with pytest.raises(CommandError, match="exceeded quota: gpus"):
            dry_run(tenant, claim("own-3", capacity={"threads": "1"}))
    finally:
        tenant.kubectl.delete("resourceclaims", "--all")
        tenant.kubectl.delete("resourcequota", "gpus")


def test_classes_and_templates_go_with_their_share(harness: Harness, tenant: Tenant) -> None:
    spec = {"delivery": "ResourceClaim", "sizes": SIZES, "nodeSelector": {"matchLabels": {"no": "where"}}}
    with harness.share("shortlived", ready=False, **spec):
        wait_until("a template", lambda: tenant.kubectl.find("resourceclaimtemplate", "small.shortlived"))
    assert not harness.kubectl.items("deviceclasses", "--selector=gpushare.dev/share=shortlived")
    assert not harness.kubectl.items("resourceclaimtemplates", "-A", "--selector=gpushare.dev/share=shortlived")


def test_who_has_a_templates_name_is_named_on_the_share_until_it_is_gone(harness: Harness, tenant: Tenant) -> None:
    squatter: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "small.squatted"},
        "spec": {"spec": claim("x", "gpu.example.com")["spec"]},
    }
    tenant.kubectl.create(squatter)
    spec = {"delivery": "ResourceClaim", "sizes": SIZES, "nodeSelector": {"matchLabels": {"no": "where"}}}
    with harness.share("squatted", ready=False, **spec) as share:
        told = wait_until("the event on the share", lambda: share.events("WriteRefused"), 60)
        assert f"kubectl delete resourceclaimtemplate -n {tenant.name} small.squatted" in told[0]
        tenant.kubectl.delete("resourceclaimtemplate", "small.squatted")

        def ours() -> bool:
            template = tenant.kubectl.find("resourceclaimtemplate", "small.squatted")
            return (
                template is not None and template["metadata"].get("labels", {}).get("gpushare.dev/share") == "squatted"
            )

        wait_until("the operator's own", ours, 90)
