"""The documentation says what the code says: every reason has its line, the README's examples are those that we run."""

import re

import pytest
import yaml

from gpushare.api import crd, names, reference
from gpushare.api.conditions import FINDING_REASONS, DaemonReason, EventReason, GpuReason, ShareReason
from gpushare.api.gpushare import GpuShare
from gpushare.controller.claims.objects import device_classes, share_templates
from gpushare.mps.wire import RefusedAttach
from gpushare.webhook.claims import admit_claim
from gpushare.webhook.review import AdmissionData, Admitted
from gpushare.webhook.shares import validate_share
from localcluster.paths import REPOSITORY
from tests.unit.docs.exported import exposed

REASONS = (REPOSITORY / "docs" / "reasons.md").read_text()


@pytest.mark.parametrize("reason", [*ShareReason, *GpuReason, *DaemonReason, *FINDING_REASONS, *RefusedAttach])
def test_every_reason_is_explained(reason: str) -> None:
    assert f"| `{reason}` |" in REASONS


def test_the_page_of_events_has_a_line_for_each_reason_and_no_other() -> None:
    told = re.findall(r"^\| `(\w+)` \| (?:Normal|Warning) \|", (REPOSITORY / "docs" / "events.md").read_text(), re.M)
    assert sorted(told) == sorted(EventReason)


def test_the_page_of_metrics_has_each_exported_metric_and_no_other() -> None:
    page = (REPOSITORY / "docs" / "metrics-list.md").read_text()
    told = re.findall(r"^\| `(gpushare_\w+)` \| (\w+) \| ([\w, ]*) \| (.*) \|$", page, re.MULTILINE)
    assert sorted(told) == sorted(
        {(metric.name, metric.kind, ", ".join(metric.labels), metric.help) for metric in exposed()}
    )


@pytest.mark.parametrize(
    ("page", "file"),
    [
        ("README.md", "examples/inference.yaml"),
        ("README.md", "examples/pod.yaml"),
        ("docs/placement.md", "examples/classes/share.yaml"),
        ("docs/placement.md", "examples/classes/pods.yaml"),
        ("docs/notebooks.md", "examples/notebooks/share.yaml"),
        ("docs/notebooks.md", "examples/notebooks/jupyterhub.yaml"),
        ("docs/whole-gpus.md", "examples/whole.yaml"),
        ("docs/autoscaling.md", "examples/autoscaling/adapter.yaml"),
        ("docs/autoscaling.md", "examples/autoscaling/autoscaler.yaml"),
        ("docs/kueue.md", "examples/kueue/values.yaml"),
        ("docs/kueue.md", "examples/kueue/queues.yaml"),
        ("docs/kueue.md", "examples/kueue/claim-job.yaml"),
    ],
)
def test_the_examples_that_are_shown_are_the_files_that_are_run(page: str, file: str) -> None:
    text = (REPOSITORY / page).read_text()
    block = re.search(rf"<!-- {re.escape(file)} -->\n```yaml\n(.*?)```", text, re.DOTALL)
    assert block is not None
    assert block[1] == (REPOSITORY / file).read_text()
    assert list(yaml.safe_load_all(block[1])), "the block is not empty"


def test_the_collectors_example_renames_metrics_and_labels_of_ours() -> None:
    """What no cluster of every run shows: the test with a Collector itself is opt-in."""
    text = (REPOSITORY / "examples" / "opentelemetry.yaml").read_text()
    page = (REPOSITORY / "docs" / "metrics.md").read_text()
    ours = {metric.name for metric in exposed()}
    assert set(re.findall(r"\bgpushare_\w+(?![\w*.])", text + page)) <= ours
    assert set(re.findall(r'"(gpushare_\w+)"', text)) <= set(re.findall(r"`(gpushare_\w+)`", page)), "the page says so"
    renamed = set(re.findall(r'attributes\["(\w+)"\]', text))
    assert renamed
    assert renamed <= {label for metric in exposed() for label in metric.labels}


def test_the_shares_and_classes_of_the_page_of_kueue_are_ours() -> None:
    """What no cluster of every run shows: the test with Kueue itself is opt-in."""
    folder = REPOSITORY / "examples" / "kueue"
    shares = {}
    for name in ("batch", "mixed", "elastic"):
        body = yaml.safe_load((folder / f"{name}.yaml").read_text())
        assert validate_share(body, None) == Admitted()
        shares[name] = GpuShare.model_validate(body)
    values = yaml.safe_load((folder / "values.yaml").read_text())
    kueue = yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"])
    mappings = kueue["resources"]["deviceClassMappings"]
    classes = {body["metadata"]["name"] for share in shares.values() for body in device_classes(share)}
    assert {name for mapping in mappings for name in mapping["deviceClassNames"]} == classes - {"mixed.gpushare.dev"}
    queues = [
        item for item in yaml.safe_load_all((folder / "queues.yaml").read_text()) if item["kind"] == "ClusterQueue"
    ]
    for queue in queues:
        (group,) = queue["spec"]["resourceGroups"]
        slots = {names.slot_resource("batch"), names.slot_resource("mixed")}
        assert set(group["coveredResources"]) == slots | {mapping["name"] for mapping in mappings}


def test_what_the_page_of_claims_shows_is_admitted() -> None:
    text = (REPOSITORY / "docs" / "resource-claims.md").read_text()
    shown = {obj["kind"]: obj for obj in map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)) if obj}
    assert shown.keys() == {"GpuShare", "Pod", "ResourceClaimTemplate", "ResourceQuota"}
    assert validate_share(shown["GpuShare"], None) == Admitted()
    share = GpuShare.model_validate(shown["GpuShare"])
    world = AdmissionData("team-a", {}, {share.name: share}, [share.name], "gpushare-system")
    assert admit_claim(shown["ResourceClaimTemplate"], world) == Admitted()
    (size,) = {entry["resourceClaimTemplateName"] for entry in shown["Pod"]["spec"]["resourceClaims"]}
    templates = {template["metadata"]["name"]: template for template in share_templates(share)}
    assert admit_claim(templates[size], world) == Admitted()
    classes = {body["metadata"]["name"] for body in device_classes(share)}
    for resource in shown["ResourceQuota"]["spec"]["hard"]:
        name = resource.removesuffix(".deviceclass.resource.k8s.io/devices")
        assert name in classes or name == f"requests.gpushare.dev/{share.name}"


def test_the_api_reference_is_current() -> None:
    assert (REPOSITORY / "docs" / "api.md").read_text() == reference.markdown(crd.definitions()), "run make crds"
