"""Installing in either order, upgrading with clients running, uninstalling: as an administrator does it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.kubectl import CommandError
from localcluster.paths import REPOSITORY
from localcluster.stack import CHART, NAMESPACE, RELEASE, Stack, install, prepare_namespace
from tests.cluster.harness import NODE, Harness, Share, is_ready, wait_until

DELETING = ("--set=uninstall.shares=Delete", "--set=uninstall.timeoutSeconds=10")
DEFINITIONS = ("gpushares.gpushare.dev", "gpunodes.gpushare.dev")
OURS = "--selector=app.kubernetes.io/name=gpushare"
GUARDED = (
    f"crd/{DEFINITIONS[0]}",
    f"namespace/{NAMESPACE}",
    "deployment/gpushare-operator",
    "daemonset/gpushare-agent",
    "clusterrole/gpushare-operator",
)


@pytest.fixture(scope="module")
def fresh(stack: Stack) -> Iterator[Harness]:
    """The worker's cluster, whether gpushare is installed on it or not. Afterwards it is, as the others need it."""
    harness = Harness(stack)
    yield harness
    install(stack)
    remove_shares(harness)


@pytest.fixture
def installed(fresh: Harness) -> Harness:
    """The chart with its default values, whatever an earlier test left; no GpuShare."""
    install(fresh.stack)
    remove_shares(fresh)
    return fresh


@pytest.fixture
def bare(fresh: Harness) -> Harness:
    """Neither the chart nor the definitions, whatever an earlier test left."""
    if fresh.kubectl.find("crd", DEFINITIONS[0]) and fresh.kubectl.items("gpushares"):
        install(fresh.stack)  # after a failure: without an operator they would stay for ever
        remove_shares(fresh)
    if RELEASE in fresh.stack.helm("list", "--short", "--namespace", NAMESPACE).split():
        uninstall(fresh)
    fresh.kubectl.delete("crd", *DEFINITIONS)
    return fresh


def remove_shares(harness: Harness) -> None:
    harness.kubectl.delete("gpushares", "--all", seconds=90)


@pytest.fixture
def early(installed: Harness) -> Iterator[Share]:
    with installed.share("early", per_gpu=4) as share:
        yield share


def test_definitions_applied_by_hand_before_the_chart_are_left_as_they_are(bare: Harness) -> None:
    bare.kubectl("apply", "-f", str(REPOSITORY / "crds"))
    bare.kubectl("wait", "--for=condition=Established", *(f"crd/{name}" for name in DEFINITIONS))
    share = Share(bare, "first")
    share.apply(per_gpu=4)
    uids = {name: bare.kubectl.get("crd", name)["metadata"]["uid"] for name in DEFINITIONS}
    install(bare.stack)
    try:
        share.wait_ready(gpus=2)
        assert {name: bare.kubectl.get("crd", name)["metadata"]["uid"] for name in DEFINITIONS} == uids
    finally:
        share.delete()
        give_to_the_release(bare)


def give_to_the_release(harness: Harness) -> None:
    """The definitions are the chart's again, as tests of other files on this cluster expect."""
    harness.kubectl("label", "crd", *DEFINITIONS, "app.kubernetes.io/managed-by=Helm", "--overwrite")
    owner = f"meta.helm.sh/release-name={RELEASE}", f"meta.helm.sh/release-namespace={NAMESPACE}"
    harness.kubectl("annotate", "crd", *DEFINITIONS, *owner, "--overwrite")


def test_an_upgrade_with_clients_running_restarts_none_of_them(fresh: Harness, early: Share) -> None:
    """Nor does an uninstallation, which is refused as long as there is a share, and changes nothing."""
    with fresh.namespace() as tenant:
        names = tenant.neighbours("early", 2)
        before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in tenant.pods()}
        daemons = mps_uids(fresh)
        install(
            fresh.stack, "--set=agent.logLevel=DEBUG", "--set=operator.logLevel=WARNING", "--set=mps.drainSeconds=1800"
        )
        tenant.go_on(names)
        assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in tenant.running()} == before
        assert mps_uids(fresh) == daemons, "an upgrade must not replace an MPS pod"
        notes = fresh.stack.helm("get", "notes", RELEASE, "--namespace", NAMESPACE)
        assert "is upgraded in namespace" in notes
        assert "kind: GpuShare" not in notes, "no first steps for one who has taken them"

        for guarded in GUARDED:
            with pytest.raises(CommandError, match="not deleted: GpuShare early would be left"):
                fresh.system("delete", guarded, "--dry-run=server")
        assert "deleted" in fresh.system("delete", "service/gpushare-webhook", "--dry-run=server")
        with pytest.raises(CommandError, match=f"installed by release {RELEASE} of namespace {NAMESPACE}: one"):
            fresh.stack.helm("install", "another", str(CHART), "--namespace", "default")

        with pytest.raises(CommandError, match="GpuShare early would be left") as refused:
            uninstall(fresh)
        tenant.go_on(names)
        assert mps_uids(fresh) == daemons
        assert is_ready(fresh.kubectl.get("gpushare", "early"))
        advice = re.search(r"To keep gpushare instead: helm (rollback \S+ \d+ --namespace \S+)", refused.value.text)
        assert advice, refused.value.text
        fresh.stack.helm(*advice[1].split())
        assert values(fresh)["operator"] == {"logLevel": "WARNING"}, "of the release in use, not of the one before"
        assert status(fresh) == "deployed"
        tenant.go_on(names)


def test_manifests_that_are_applied_again_change_nothing(bare: Harness) -> None:
    prepare_namespace(bare.kubectl, NAMESPACE, "privileged")
    repository, _, tag = bare.stack.operator_image.rpartition(":")
    image = (f"--set=image.repository={repository}", f"--set-string=image.tag={tag}", "--set=simulation.enabled=true")
    applied = ("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--set=hooks.enabled=false", *image)
    manifests = bare.stack.helm(*applied)
    try:
        bare.kubectl("apply", "-f", "-", stdin=manifests)
        bare.wait_component("operator", 120)
        bare.wait_component("webhook", 120)
        again = bare.kubectl("apply", "-f", "-", stdin=manifests).splitlines()
        changed = [line for line in again if not line.endswith(" unchanged")]
        # kubectl replaces the selector of a disruption budget each time, by the definition of that field.
        assert changed == ["poddisruptionbudget.policy/gpushare-webhook configured"]
        bare.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifests)
        before = versions(bare)
        bare.kubectl("apply", "--server-side", "-f", "-", stdin=manifests)
        assert versions(bare) == before
        # A prune that was stopped by the guard has deleted the Secrets, and the operator makes them again meanwhile.
        bare.system("delete", "secrets", OURS)
        wait_until("the Secrets are back", lambda: len(bare.system.items("secrets", OURS)) == 2, 60)
        bare.kubectl("apply", "--server-side", "-f", "-", stdin=manifests)
    finally:
        bare.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=manifests, seconds=120)
        wait_until("our parts have ended", lambda: not bare.system.items("pods", OURS), 60)
        bare.system("delete", "secrets", OURS)  # the operator makes them again as long as it runs


def versions(harness: Harness) -> dict[tuple[str, str], str]:
    """The resourceVersion of each object of the chart that its own parts do not write all the time."""
    kinds = "validatingadmissionpolicies,mutatingwebhookconfigurations,clusterroles,networkpolicies,services,secrets"
    chosen = harness.system.items(kinds, "--selector=app.kubernetes.io/name=gpushare")
    return {(item["kind"], item["metadata"]["name"]): item["metadata"]["resourceVersion"] for item in chosen}


def mps_uids(harness: Harness) -> set[str]:
    pods = harness.pods_of("mps")
    return {pod["metadata"]["uid"] for pod in pods}


def uninstall(harness: Harness, *options: str) -> None:
    harness.stack.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", *options)


def status(harness: Harness) -> str:
    state: str = json.loads(harness.stack.helm("status", RELEASE, "--namespace", NAMESPACE, "-o", "json"))["info"][
        "status"
    ]
    return state


def values(harness: Harness) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        harness.stack.helm("get", "values", RELEASE, "--namespace", NAMESPACE, "-o", "json")
    )
    return loaded


def test_an_installation_that_never_came_up_is_uninstalled_at_once(bare: Harness) -> None:
    prepare_namespace(bare.kubectl, NAMESPACE, "privileged")
    unknown = ("--set=image.repository=registry.example.com/nobody/operator", "--set=simulation.enabled=true")
    bare.stack.helm("install", RELEASE, str(CHART), "--namespace", NAMESPACE, *unknown)
    bare.stack.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--timeout=30s", seconds=40)
    assert not bare.system.items(
        "deployments,daemonsets,secrets,configmaps", "--selector=app.kubernetes.io/name=gpushare"
    )


def test_an_uninstallation_leaves_what_is_documented_and_no_more(bare: Harness) -> None:
    """The chart alone has brought the definitions."""
    prepare_namespace(bare.kubectl, NAMESPACE, "privileged")
    new = {("ConfigMap", NAMESPACE, "kube-root-ca.crt"), ("ServiceAccount", NAMESPACE, "default")}
    wait_until(
        "nothing of an earlier test", lambda: {item for item in objects(bare) if item[1] == NAMESPACE} == new, 60
    )
    before = objects(bare)
    install(bare.stack)
    bare.stack.helm("test", RELEASE, "--namespace", NAMESPACE)
    with bare.share("brief", per_node=1) as share:
        share.wait_capacity(8)
    uninstall(bare)
    assert bare.kubectl.items("gpushares") == []
    assert bare.gpu_dirs() == {}
    assert not list(bare.in_node("/var/run/cdi").glob("*gpushare*"))
    documented = {
        *((("CustomResourceDefinition", "", name)) for name in DEFINITIONS),
        ("GpuNode", "", NODE),
        ("Lease", NAMESPACE, NODE),
    }
    # Other controllers remove what belonged to what was deleted: pods, EndpointSlices, revisions, the resource slices.
    wait_until("only that is left", lambda: objects(bare) - before == documented, 60, lambda: objects(bare) - before)
    bare.kubectl.delete("crd", *DEFINITIONS)
    wait_until("nothing is left", lambda: objects(bare) == before, 60, lambda: objects(bare) ^ before)


def objects(harness: Harness) -> set[tuple[str, str, str]]:
    """(kind, namespace, name) of all that the API server has.

    Without events, which it removes by itself, and APIServices, of which each definition has one.
    """
    kinds = harness.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    listed = ",".join(kind for kind in kinds if not kind.startswith(("events", "apiservices")))
    return {
        (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])
        for item in harness.kubectl.items(listed, "--all-namespaces")
    }


@pytest.mark.long
@pytest.mark.usefixtures("installed")
def test_a_share_left_by_an_uninstallation_goes_with_the_next_installation(fresh: Harness) -> None:
    """It is left as after `helm uninstall --no-hooks`, with operator and agent gone while it is deleted."""
    with fresh.share("stranded", per_node=1) as share:
        fresh.kubectl.delete("validatingadmissionpolicybinding", "gpushare-uninstall")  # which would refuse it
        uninstall(fresh, "--no-hooks")
        share.delete(wait=False)
        assert fresh.gpu_dirs(), "nobody is there to give the GPU back"
        assert "gpushare.dev/drain" in share.get()["metadata"]["finalizers"]
        install(fresh.stack)
        wait_until("the share is gone", lambda: not fresh.kubectl.find("gpushare", "stranded"), 90)
        assert fresh.gpu_dirs() == {}
        assert fresh.compute_modes() == {"Default"}
        wait_until("its MPS pod has ended", lambda: not mps_uids(fresh))


def test_an_uninstallation_that_deletes_shares_waits_for_their_clients(fresh: Harness) -> None:
    install(fresh.stack, *DELETING)
    remove_shares(fresh)
    with fresh.share("chosen", per_node=1) as share, fresh.namespace() as tenant:
        (name,) = tenant.neighbours("chosen", 1)
        with pytest.raises(CommandError, match="waiting for 1 pod to end"):
            uninstall(fresh)
        checks = tenant.checks(name)
        wait_until("the client goes on", lambda: tenant.checks(name) > checks)
        tenant.delete_pods()
        wait_until("the share is gone", lambda: not fresh.kubectl.find("gpushare", share.name), 60)
        uninstall(fresh)
        assert fresh.gpu_dirs() == {}
