"""Kueue over gpushare: slots and claims are quota, what waits is explained, what is preempted harms nobody.

Opt-in (`make kueue-test`), because building Kueue takes minutes that say little new on every run. Kueue comes from its
module's sources, with its own chart; shares, queues and jobs are those that docs/kueue.md shows (examples/kueue).
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localcluster.kubectl import Object
from localcluster.paths import REPOSITORY, cache_root
from localcluster.programs.build import KUEUE_IMAGE, build_kueue
from localcluster.stack import Stack, prepare_namespace
from tests.cluster import claims, conftest
from tests.cluster.clients.test_departure import ENDLESS_MS, ends
from tests.cluster.harness import NODE, Harness, Share, Tenant, holds_for, own_cluster, wait_until
from tests.cluster.tools.test_kubectl import why

CLUSTER = f"{conftest.CLUSTER}-kueue"
EXAMPLES = REPOSITORY / "examples" / "kueue"
NAMESPACE = "kueue-system"
QUEUE = "kueue.x-k8s.io/queue-name"
URGENT: dict[str, Any] = {"kueue.x-k8s.io/priority-class": "urgent"}
BESIDE = ("depart", "--report-every", "0.3")
IN_MID_KERNEL = ("depart", "--role", "victim", "--kernel-ms", ENDLESS_MS)


@pytest.fixture(scope="module")
def fresh(request: pytest.FixtureRequest) -> Iterator[Harness]:
    if not request.config.getoption("--kueue"):
        pytest.skip("builds Kueue: make kueue-test")
    built = build_kueue(cache_root())
    with own_cluster(CLUSTER, built / "kueue.tar") as harness:
        install_kueue(harness.stack, built / "chart")
        harness.kubectl("label", "node", NODE, "pool=gpu", "--overwrite")
        harness.kubectl("apply", "-f", str(EXAMPLES / "queues.yaml"))
        yield harness


def install_kueue(stack: Stack, chart: Path) -> None:
    """Installs Kueue with the page's values, but without Kueue's view of its queues, which no test asks for. Its
    APIs are not announced either: what is announced and does not answer keeps namespaces from ending.
    """
    prepare_namespace(stack.kubectl, NAMESPACE, "restricted")
    repository, _, tag = KUEUE_IMAGE.rpartition(":")
    manager, gate = "controllerManager.manager", "controllerManager.featureGates[1]"
    stack.helm(
        "upgrade", "--install", "kueue", str(chart), "--namespace", NAMESPACE, f"--values={EXAMPLES / 'values.yaml'}",
        f"--set={manager}.image.repository={repository}", f"--set-string={manager}.image.tag={tag}",
        f"--set={manager}.image.pullPolicy=IfNotPresent", f"--set={manager}.podSecurityContext.runAsUser=65532",
        f"--set={gate}.name=VisibilityOnDemand", f"--set={gate}.enabled=false",
    )  # fmt: skip
    for version in ("v1beta1", "v1beta2"):
        stack.kubectl.delete("apiservice", f"{version}.visibility.kueue.x-k8s.io")
    rollout = ("rollout", "status", "deployment/kueue-controller-manager", "--timeout=180s")
    stack.kubectl.within(NAMESPACE)(*rollout, seconds=190)


@contextmanager
def example_share(harness: Harness, name: str) -> Iterator[Share]:
    share = Share(harness, name)
    harness.kubectl("apply", "-f", str(EXAMPLES / f"{name}.yaml"))
    try:
        share.wait_ready()
        yield share
    finally:
        share.delete()


@contextmanager
def team(harness: Harness, name: str) -> Iterator[Tenant]:
    """A namespace with the team's queue; afterwards nothing of its quota is used."""
    with harness.namespace(name) as tenant:
        tenant.kubectl("apply", "-f", str(EXAMPLES / f"{name}.yaml"))
        try:
            yield tenant
        finally:
            tenant.kubectl.delete("jobs", "--all", seconds=90)
            tenant.delete_pods()


def job(pod: Object, parallelism: int = 1, **labels: str) -> Object:
    """A Job of such pods, in the team's queue. `labels`: of the Job."""
    metadata = pod["metadata"]
    template = {"metadata": {"annotations": metadata["annotations"]}, "spec": pod["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": metadata["name"], "labels": {QUEUE: "gpus", **labels}},
        "spec": {"parallelism": parallelism, "completions": parallelism, "backoffLimit": 0, "template": template},
    }


def claiming(tenant: Tenant, name: str, share: str, memory: str = "") -> Object:
    """A Job whose claim is of the share's own class, by a template of the Job's name, which is made."""
    body = claims.claim(name, f"{share}.gpushare.dev", {"memory": memory} if memory else None)
    tenant.kubectl.create(body | {"kind": "ResourceClaimTemplate", "spec": {"spec": body["spec"]}})
    return job(claims.with_claim(tenant.pod(name, share, *claims.HELD), resourceClaimTemplateName=name))


def pods_of(tenant: Tenant, name: str) -> list[str]:
    """The Job's pods that exist and are not leaving."""
    pods = tenant.kubectl.items("pods", f"--selector=batch.kubernetes.io/job-name={name}")
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def started(tenant: Tenant, name: str, kind: str = "progress", count: int = 1) -> list[str]:
    """The Job's pods, once each of so many has written a line of that kind."""
    wait_until(f"{count} pods of {name}", lambda: len(pods_of(tenant, name)) == count, 60, lambda: told(tenant, name))
    pods = pods_of(tenant, name)
    for pod in pods:
        tenant.wait_event(pod, kind)
    return pods


def is_gated(pod: Object) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def told(tenant: Tenant, name: str) -> dict[str, Any]:
    """The condition in which Kueue says why the Job, or the pod, of that name has no quota."""
    for workload in tenant.kubectl.items("workloads.kueue.x-k8s.io"):
        if [owner["name"] for owner in workload["metadata"].get("ownerReferences", [])] == [name]:
            conditions = workload.get("status", {}).get("conditions", [])
            return next((condition for condition in conditions if condition["type"] == "QuotaReserved"), {})
    return {}


def used(harness: Harness, queue: str, resource: str) -> str:
    """What the ClusterQueue counts of the resource."""
    flavors = harness.kubectl.get("clusterqueue", queue)["status"].get("flavorsUsage") or []
    return next(
        (entry["total"] for flavor in flavors for entry in flavor["resources"] if entry["name"] == resource), ""
    )


def waits(harness: Harness, tenant: Tenant, name: str, lacking: str) -> None:
    """Kueue holds it, for lack of that resource, and `why` says so in Kueue's own words."""
    wait_until(
        f"{name} waits", lambda: lacking in told(tenant, name).get("message", ""), 60, lambda: told(tenant, name)
    )
    answer = why(harness, tenant, name, lacking)
    assert answer["stage"] == "queue"
    assert answer["sentence"] == f'Kueue holds it in LocalQueue "gpus": {told(tenant, name)["message"]}'
    assert answer["source"].startswith("workload/")
    assert pods_of(tenant, name) == []


def test_slots_are_quota_that_a_team_borrows_and_gives_back_without_harm(
    fresh: Harness,
) -> None:
    with example_share(fresh, "batch"), team(fresh, "team-a") as a, team(fresh, "team-b") as b:
        a.kubectl.create(job(a.pod("own", "batch", *BESIDE), 2))
        neighbours = started(a, "own", count=2)
        a.kubectl.create(job(a.pod("borrowed", "batch", *IN_MID_KERNEL, grace=20), 2))
        borrowers = started(a, "borrowed", "started", count=2)
        wait_until("all four are team A's", lambda: used(fresh, "team-a", "gpushare.dev/batch") == "4")

        a.kubectl.create(job(a.pod("third", "batch", *BESIDE)))
        waits(fresh, a, "third", "gpushare.dev/batch")
        gated = a.pod("gated", "batch", *BESIDE)
        gated["metadata"]["labels"] = {QUEUE: "gpus"}
        a.start(gated)
        assert why(fresh, a, "gated", told_later(a, "gated"))["stage"] == "queue"

        b.kubectl.create(job(b.pod("back", "batch", *BESIDE), 2))
        started(b, "back", count=2)
        a.go_on(neighbours)
        for name in borrowers:
            wait_until(f"{name} was ended in order", lambda name=name: len(ends(a, name)) == 1, 30)
        waits(fresh, a, "borrowed", "gpushare.dev/batch")


def told_later(tenant: Tenant, name: str) -> str:
    """Kueue's message, once it has looked."""
    return str(wait_until(f"Kueue looks at {name}", lambda: told(tenant, name).get("message"), 60))


def test_an_urgent_job_takes_the_slot_of_one_in_mid_kernel_without_harm(fresh: Harness) -> None:
    with example_share(fresh, "batch"), team(fresh, "team-a") as a, team(fresh, "team-b") as b:
        b.kubectl.create(job(b.pod("other-team", "batch", *BESIDE), 2))
        a.kubectl.create(job(a.pod("steady", "batch", *BESIDE), **URGENT))
        others, steady = started(b, "other-team", count=2), started(a, "steady")
        a.kubectl.create(job(a.pod("victim", "batch", *IN_MID_KERNEL, grace=20)))
        (victim,) = started(a, "victim", "started")

        a.kubectl.create(job(a.pod("urgent", "batch", *BESIDE), **URGENT))
        started(a, "urgent")
        b.go_on(others)
        a.go_on(steady)
        assert len(ends(a, victim)) == 1, "it left in order"
        waits(fresh, a, "victim", "gpushare.dev/batch")


def test_claims_are_quota_by_size_and_plain_slots_by_the_shares_name(fresh: Harness) -> None:
    with example_share(fresh, "mixed"), team(fresh, "team-a") as a, team(fresh, "team-b") as b:
        for tenant in (a, b):
            claims.wait_template(tenant, "small", "mixed")
            tenant.kubectl.create(job(claims.sized(tenant, "small", "mixed", "small")))
            (pod,) = started(tenant, "small", "limits")
            (limits,) = tenant.events_of(pod, "limits")
            assert (limits["problems"], limits["granted"]["threads"]) == ([], 10)
        a.kubectl.create(
            job(claims.sized(a, "second", "mixed", "small")),
            job(claims.sized(a, "large", "mixed", "large")),
            job(a.pod("slot", "mixed", *claims.HELD)),
        )
        waits(fresh, a, "second", "mixed-small")
        for name in ("large", "slot"):
            started(a, name, "limits")
        counted = ("mixed-small", "mixed-large", "gpushare.dev/mixed")
        wait_until("one of each", lambda: [used(fresh, "team-a", resource) for resource in counted] == ["1"] * 3)
        b.kubectl.delete("job", "small")
        started(a, "second", "limits")


def test_the_memory_of_claims_is_quota_whatever_their_size(fresh: Harness) -> None:
    with example_share(fresh, "elastic"), team(fresh, "team-a") as a:
        claims.wait_template(a, "small", "elastic")
        a.kubectl.create(claiming(a, "ten", "elastic", "10Gi"), job(claims.sized(a, "eight", "elastic", "small")))
        for name in ("ten", "eight"):
            started(a, name, "limits")
        wait_until("18Gi are counted", lambda: used(fresh, "team-a", "elastic-memory") == "18Gi")
        a.kubectl.create(claiming(a, "default", "elastic"))
        waits(fresh, a, "default", "elastic-memory")
        a.kubectl.create(claiming(a, "two", "elastic", "2Gi"))
        started(a, "two", "limits")
        a.kubectl.delete("job", "eight")
        started(a, "default", "limits")
        wait_until("the default of 4Gi is counted", lambda: used(fresh, "team-a", "elastic-memory") == "16Gi")


def test_what_kueue_cannot_count_it_holds_and_why_says_so(fresh: Harness) -> None:
    with example_share(fresh, "elastic"), example_share(fresh, "mixed"), team(fresh, "team-a") as a:
        own = claims.claimed(a, "own-claim", "elastic", "10", "4Gi")
        # A pod's requests follow its limits; those of a Job's template do not, and Kueue reads requests.
        slot = a.pod("slot", "elastic", *claims.HELD)
        a.kubectl.create(job(own), job(a.pod("slots", "elastic", *claims.HELD)))
        a.kubectl.create(claiming(a, "unmapped", "mixed"))
        a.start(slot | {"metadata": slot["metadata"] | {"labels": {QUEUE: "gpus"}}})
        assert why(fresh, a, "own-claim", "does not support use of resource claims")["stage"] == "queue"
        assert why(fresh, a, "unmapped", "mixed.gpushare.dev is not mapped")["stage"] == "queue"
        assert why(fresh, a, "slots", "resource gpushare.dev/elastic unavailable in ClusterQueue")["stage"] == "queue"
        assert why(fresh, a, "slot", "with capacity sources configured")["stage"] == "queue"
        astray = job(a.pod("astray", "elastic", *claims.HELD))
        astray["metadata"]["labels"][QUEUE] = "gpu"
        a.kubectl.create(astray)
        assert 'LocalQueue "gpu"' in why(fresh, a, "astray", "doesn't exist")["sentence"]
        holds_for("Kueue lets none of them start", lambda: all(is_gated(pod) for pod in a.pods()), 5)


def test_the_jobs_of_the_page_run_as_they_are(fresh: Harness) -> None:
    with example_share(fresh, "batch"), example_share(fresh, "mixed"), team(fresh, "team-a") as a:
        claims.wait_template(a, "small", "mixed")
        for file in ("job.yaml", "claim-job.yaml"):
            a.kubectl("apply", "-f", str(EXAMPLES / file))
        a.kubectl("wait", "--for=condition=Complete", "job/slots", "job/sized", "--timeout=120s", seconds=130)
        for name in a.pods():
            said = [json.dumps(line) for line in a.events_of(name["metadata"]["name"], "limits") if line["problems"]]
            assert said == []
