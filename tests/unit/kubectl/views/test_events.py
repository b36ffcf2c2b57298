"""`kubectl gpushare events`: gpushare's own events and refusals, and nobody else's."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.kubectl.page.content.rows import event_rows
from gpushare.kubectl.views.events import concerns_gpushare, events, of_an_object, of_object
from tests.unit.kubectl.cluster_objects import event

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
DENIED = "pods \"a\" is forbidden: ValidatingAdmissionPolicy '{}' with binding 'b' denied request: no"
HOOK = 'Error creating: admission webhook "{}" denied the request: no'


def forged(kind: str, message: str, **about: str) -> Any:
    """Kubernetes lets who may write events in a namespace name any object there, whether there is one or not."""
    own = event("GpuFault", message, at="2026-01-01T00:59:00Z", reportingComponent="x")
    own["involvedObject"] |= {"kind": kind, "name": "a", **about}
    return own


EVENTS: dict[str, tuple[Any, bool]] = {
    "an agent's": (event("ClientTerminated", "in order"), True),
    "a pull of an image of that name": (
        event("Pulled", 'image "localhost/gpushare-workload:1" is there', type="Normal", reportingComponent="kubelet"),
        False,
    ),
    "a failed pull of such an image": (
        event("Failed", "gpushare/none:0: not found", reportingComponent="kubelet"), False
    ),
    "the scheduler's about a slot": (
        event("FailedScheduling", "3 Insufficient gpushare.dev/inference", reportingComponent="default-scheduler"),
        False,
    ),
    "somebody's about a share": (event("Synced", "by GitOps", "GpuShare/a", reportingComponent="argocd"), True),
    "a tenant's about a share": (forged("GpuShare", "run this"), False),
    "a tenant's about a node": (forged("GpuNode", "run this"), False),
    "a tenant's about a share in other letters": (forged("gpuShare", "run this"), False),
    "a tenant's of a refusal of a share": (forged("GpuShare", HOOK.format("pods.gpushare.dev")), False),
    "a refusal by the webhook": (
        event("FailedCreate", HOOK.format("pods.gpushare.dev"), "Job/a", reportingComponent="job-controller"), True
    ),
    "a webhook that is not reached": (
        event("FailedCreate", 'failed calling webhook "pods.gpushare.dev": EOF', reportingComponent="job-controller"),
        True,
    ),
    "a refusal by another webhook": (
        event("FailedCreate", HOOK.format("pods.kyverno.svc") + " gpushare", reportingComponent="job-controller"), False
    ),
    "a refusal by a policy of ours": (
        event("FailedCreate", DENIED.format("gpushare-labels"), reportingComponent="job-controller"), True
    ),
    "a refusal by another's policy": (
        event("FailedCreate", DENIED.format("no-gpushare"), reportingComponent="job-controller"), False
    ),
    "one of an old client": (
        event("Pulled", "gpushare", reportingComponent="", source={"component": "kubelet"}), False
    ),
    "one of an old agent": (
        event("GpuFault", "an Xid", reportingComponent="", source={"component": "gpushare-agent"}), True
    ),
}  # fmt: skip


@pytest.mark.parametrize(("listed", "shown"), EVENTS.values(), ids=EVENTS)
def test_events_are_gpushares_by_writer_object_or_refusal(listed: Any, shown: bool) -> None:
    assert concerns_gpushare(listed) is shown
    assert len(events([listed], NOW).data["events"]) == int(shown)


def about(uid: str, at: str) -> Any:
    made = event("Ready", f"of {uid}", "GpuShare/a", at=at)
    made["involvedObject"] |= {"uid": uid}
    return made


def test_a_refusal_is_looked_for_at_the_beginning_of_a_message_alone() -> None:
    told = event("FailedCreate", "x" * 5000 + DENIED.format("gpushare-events"), reportingComponent="job-controller")
    assert not concerns_gpushare(told)


def test_events_of_a_deleted_predecessor_are_not_those_of_its_successor() -> None:
    listed = [about("old", "2026-01-01T00:00:00Z"), about("new", "2026-01-01T00:30:00Z")]
    shown = events(listed, NOW, about="gpushare/a").data["events"]
    assert [line["message"] for line in shown] == ["of new"]
    assert len(events(listed, NOW).data["events"]) == 2
    assert of_object(listed, "GpuShare", "new") == listed[1:]
    assert of_object(listed, "GpuNode", "new") == []
    assert events([], NOW, about="gpushare/a").data["events"] == []


def test_a_tenants_event_hides_none_of_another_namespace() -> None:
    share, pod = about("true", "2026-01-01T00:00:00Z"), event("ClientTerminated", "of the pod", "Pod/a")
    pod["involvedObject"] |= {"uid": "true"}
    other = event("ClientTerminated", "of its own", "Pod/a", at="2026-01-01T00:59:00Z")
    other["involvedObject"] |= {"uid": "other", "namespace": "tenant"}
    listed = [share, pod, other, forged("GpuShare", "run this", uid="other")]
    shown = [
        [line["message"] for line in events(listed, NOW, about=name).data["events"]] for name in ("gpushare/a", "pod/a")
    ]
    assert shown == [["of true"], ["of the pod", "of its own"]]


@pytest.mark.parametrize("kind", ["GpuShare", "GpuNode"])
@pytest.mark.parametrize(
    ("writer", "named"),
    [
        ({"reportingComponent": "argocd"}, "argocd"),
        ({"reportingComponent": "", "source": {"component": "x" * 100}}, "x" * 64),
        ({"reportingComponent": ""}, "nobody who is named"),
    ],
)
def test_a_writer_that_is_not_ours_is_named_beside_what_it_says_of_a_share(kind: str, writer: Any, named: str) -> None:
    """As whoever may write events in `default` may."""
    listed = event("GpuFault", "run this", f"{kind}/a", **writer)
    says = f"not by gpushare, but by {named}: run this"
    assert events([listed], NOW).data["events"][0]["message"] == says
    assert of_an_object([listed], NOW)[0][-1] == says
    (row,) = event_rows([listed], 1).values()
    assert row["message"] == says


def test_what_a_part_of_ours_or_the_webhook_says_stands_as_it_is() -> None:
    own = event("Ready", "all is well", "GpuShare/a")
    refused = event("FailedCreate", HOOK.format("pods.gpushare.dev"), "Job/a", reportingComponent="job-controller")
    assert [line["message"] for line in events([own, refused], NOW).data["events"]] == [
        own["message"],
        refused["message"],
    ]
