"""Who may write which event, by trying what the policies forbid with the very identity that they bind."""

import json
from typing import Any

import pytest

from gpushare.agent.terminate.kubelet_kills import LACK, POD_REASONS, REJECTIONS
from localcluster.kubectl import CommandError, Object
from tests.cluster.harness import NODE, Harness
from tests.cluster.rights.policies.requests import AGENT, acting_as, refusal


def event_of(part: str, pod: str, **fields: Any) -> Object:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"policy.{part}", "namespace": "default"},
        "eventTime": "2026-03-01T00:00:00.000000Z",
        "reportingController": f"gpushare-{part}",
        "reportingInstance": pod,
        "type": "Warning",
        "reason": "GpuFault",
        "action": "Supervise",
        "note": "as it was",
        "regarding": {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuNode", "name": "here"},
        **fields,
    }


@pytest.mark.parametrize("part", ["agent", "operator"])
def test_a_part_writes_events_in_its_own_name_alone_and_rewrites_none(harness: Harness, part: str) -> None:
    create, own = ("create", "-f", "-"), acting_as(harness, f"gpushare-{part}", node="here", pod="mine")
    own(*create, "--dry-run=server", stdin=json.dumps(event_of(part, "mine")))
    for forged in (
        event_of(part, "another"),
        event_of(part, "mine", reportingController="kubelet"),
        event_of(part, "mine", reportingController="default-scheduler"),
    ):
        assert "alone" in refusal(own, *create, body=forged)
    before = acting_as(harness, f"gpushare-{part}", node="here", pod="predecessor")
    before("create", "-f", "-", stdin=json.dumps(event_of(part, "predecessor")))
    identity = {key: event_of(part, "")[key] for key in ("apiVersion", "kind", "metadata", "eventTime")}
    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    try:
        series = {"series": {"count": 2, "lastObservedTime": "2026-03-01T00:01:00.000000Z"}}
        own(*apply, "--dry-run=server", stdin=json.dumps(identity | series))
        for change in ({"note": "all is well"}, {"type": "Normal"}, {"reportingInstance": "mine"}):
            with pytest.raises(CommandError, match="immutable"):
                own(*apply, "--dry-run=server", stdin=json.dumps(identity | change))
        held = {"metadata": identity["metadata"] | {"finalizers": ["gpushare.dev/kept"]}}
        assert "its series alone" in refusal(own, *apply, body=identity | held)
    finally:
        harness.kubectl("delete", "event", f"policy.{part}", "--namespace=default")


@pytest.mark.parametrize("part", ["agent", "operator"])
def test_a_part_touches_no_event_of_others(harness: Harness, part: str) -> None:
    """The part may not even count it up."""
    body = event_of(part, "another", reportingController="kubelet")
    harness.kubectl("create", "-f", "-", stdin=json.dumps(body))
    try:
        identity = {key: body[key] for key in ("apiVersion", "kind", "metadata", "eventTime")}
        series = {"series": {"count": 2, "lastObservedTime": "2026-03-01T00:01:00.000000Z"}}
        own = acting_as(harness, f"gpushare-{part}", node="here", pod="mine")
        message = refusal(own, "apply", "--server-side", "--force-conflicts", "-f", "-", body=identity | series)
        assert f"may write events as gpushare-{part}" in message
    finally:
        harness.kubectl("delete", "event", f"policy.{part}", "--namespace=default")


def test_an_agent_writes_no_event_about_another_gpunode(harness: Harness) -> None:
    body = event_of("agent", "mine", regarding={"apiVersion": "x/v1", "kind": "GpuNode", "name": "elsewhere"})
    agent = acting_as(harness, AGENT, node="here", pod="mine")
    assert "its own node alone" in refusal(agent, "create", "-f", "-", body=body)


@pytest.mark.parametrize("part", ["agent", "operator"])
def test_a_tenant_writes_and_changes_no_event_in_our_name(harness: Harness, part: str) -> None:
    """Not even an editor of the namespace, who may write events there."""
    with harness.namespace() as tenant:
        editor = tenant.kubectl.acting_as("--as=editor")
        tenant.kubectl("create", "rolebinding", "editor", "--clusterrole=admin", "--user=editor")
        place = {"name": "forged", "namespace": tenant.name}
        about = {"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": tenant.name}
        new = event_of(part, "mine", metadata=place, regarding=about)
        old = {
            "apiVersion": "v1", "kind": "Event", "metadata": place, "involvedObject": about, "message": "all is well",
            "reason": "GpuPartGranted", "type": "Warning",
        }  # fmt: skip
        forged = [
            new,
            old | {"source": {"component": f"gpushare-{part}"}},
            old | {"reportingComponent": f"gpushare-{part}"},
        ]
        for body in forged:
            assert "for those parts to write" in refusal(editor, "create", "-f", "-", body=body)
        editor("create", "-f", "-", "--dry-run=server", stdin=json.dumps(old))
        acting_as(harness, f"gpushare-{part}", node="here", pod="mine")("create", "-f", "-", stdin=json.dumps(new))
        patch = ("patch", "event", "forged", "--type=merge")
        for change in ({"message": "all is well"}, {"reportingComponent": "kubelet"}):
            assert "for those parts to write" in refusal(editor, *patch, f"--patch={json.dumps(change)}")


def kubelet_event(**fields: Any) -> Object:
    about = {"kind": "Pod", "namespace": "default", "name": "victim", "uid": "0", "fieldPath": "spec.containers{app}"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "forged", "namespace": "default"},
        "involvedObject": about,
        "source": {"component": "kubelet", "host": NODE},
        "reason": "Killing",
        "message": "Stopping container app",
        "type": "Normal",
        **fields,
    }


def test_nobody_but_a_node_says_that_the_kubelet_ends_a_pod(harness: Harness) -> None:
    """The agent ends the clients of such a container: it would be a way to end those of others."""
    create = ("create", "-f", "-")
    for reason in ("Killing", *POD_REASONS, *REJECTIONS, f"{LACK}cpu"):
        assert "for nodes to write" in refusal(harness.kubectl, *create, body=kubelet_event(reason=reason)), reason
    node = harness.kubectl.acting_as(f"--as=system:node:{NODE}", "--as-group=system:nodes")
    node(*create, "--dry-run=server", stdin=json.dumps(kubelet_event()))
    harness.kubectl(*create, "--dry-run=server", stdin=json.dumps(kubelet_event(reason="Started")))


def test_no_node_says_that_the_kubelet_of_another_ends_a_pod(harness: Harness) -> None:
    node = harness.kubectl.acting_as("--as=system:node:elsewhere", "--as-group=system:nodes")
    for reason in ("Killing", *POD_REASONS, *REJECTIONS, f"{LACK}cpu"):
        assert "of its own kubelet" in refusal(node, "create", "-f", "-", body=kubelet_event(reason=reason)), reason


def test_the_other_form_of_an_event_is_judged_alike(harness: Harness) -> None:
    """It cannot name a source, without which no agent acts on it."""
    old = kubelet_event()
    new = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": old["metadata"],
        "eventTime": "2026-03-01T00:00:00.000000Z",
        "regarding": old["involvedObject"],
        "reportingController": "kubelet",
        "reportingInstance": "node",
        "action": "Kill",
        "reason": "Killing",
        "note": "Stopping container app",
        "type": "Normal",
    }
    assert "for nodes to write" in refusal(harness.kubectl, "create", "-f", "-", body=new)
    sourced = new | {"deprecatedSource": old["source"]}
    with pytest.raises(CommandError, match="source: Invalid value"):
        harness.kubectl("create", "-f", "-", "--dry-run=server", stdin=json.dumps(sourced))
