"""What is kept of what tenants write is bounded, and says the same of an honest object as the whole does."""

import json
from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from gpushare.kubectl.kept import LONGEST_MESSAGE, kept_claim, kept_event, kept_waiting_pod
from gpushare.kubectl.page.content.rows import event_row, pending_row
from gpushare.kubectl.views.pods.pod import PodFacts
from tests.unit.kubectl.cluster_objects import pod

LEAVES = st.none() | st.booleans() | st.integers() | st.text()
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
LONG = "x" * 1_000_000


def test_a_long_event_is_cut_and_keeps_who_wrote_it() -> None:
    event = {
        "metadata": {"name": "a", "namespace": "ml", "managedFields": [LONG], "annotations": {"a": LONG}},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "ml", "fieldPath": LONG},
        "message": LONG,
        "reason": LONG,
        "reportingComponent": "gpushare-agent",
        "series": {"count": 7, "lastObservedTime": "2026-03-01T00:00:00Z"},
    }
    kept = kept_event(event)
    assert len(json.dumps(kept)) < 3 * LONGEST_MESSAGE
    row = event_row(kept)
    assert (kept["reportingComponent"], row["count"], row["object"]) == ("gpushare-agent", 7, "pod/p")


def test_of_a_claim_our_classes_alone_are_kept() -> None:
    parameters = {"config": [{"opaque": {"driver": "other.example", "parameters": {"a": LONG}}}]}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "team.gpushare.dev", "selectors": [{"cel": LONG}]}}]
    claim = {"metadata": {"name": "a", "namespace": "ml"}, "spec": {"devices": {"requests": requests, **parameters}}}
    kept = kept_claim(claim)
    assert kept is not None
    assert len(json.dumps(kept)) < 300
    other = deepcopy(claim)
    other["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "gpu.example.com"
    assert kept_claim(other) is None


def test_a_waiting_pod_says_the_same_with_less() -> None:
    starting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    whole = pod(status={"containerStatuses": [{"name": "main", "ready": False, "state": starting}]})
    whole["metadata"]["annotations"] = {"a": LONG}
    whole["spec"]["nodeName"] = "n1"
    whole["spec"]["containers"][0]["env"] = [{"name": "A", "value": LONG}]
    whole["spec"]["containers"] += [{"name": f"c{number}", "image": LONG} for number in range(200)]
    kept = kept_waiting_pod(whole)
    assert len(json.dumps(kept)) < 200_000
    assert pending_row(PodFacts(kept)) == pending_row(PodFacts(whole))
    assert "ImagePullBackOff" in str(pending_row(PodFacts(kept))["sentence"])


@given(st.dictionaries(st.sampled_from(["message", "reason", "type", "count"]), ANYTHING))
def test_no_value_of_an_event_is_more_than_left_out(fields: dict[str, object]) -> None:
    assert len(json.dumps(kept_event({"metadata": {"name": "a"}, **fields}))) < 10 * LONGEST_MESSAGE
