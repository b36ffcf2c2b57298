"""`kubectl gpushare why`: the first thing that holds a pod back, and on which object that stands."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.views.pods.pod import PodFacts, held_by_pods
from gpushare.kubectl.views.pods.why import Stage, is_made_by, refused, report, unmade, why, worst_first
from tests.unit.kubectl.cluster_objects import LIMITS, SILENT, event, gpu_node, pod, share, shown

FULL = {"slots": {"total": 16, "used": 16}, "gpus": {"ready": 2}}
DAEMON = {"uuid": "GPU-0", "share": "inference", "ready": False, "reason": "ControlTimeout", "message": "no answer",
          "desiredLimits": LIMITS}  # fmt: skip
NODE = gpu_node("GPU-0", daemons=[DAEMON])


def with_status(**status: Any) -> dict[str, GpuShare]:
    return {"inference": GpuShare.model_validate(share().wire() | {"status": status})}


def unscheduled(message: str, **more: Any) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(status={"conditions": [condition]}, **more)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    status = {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}
    return pod(spec={"nodeName": "n1"}, status={"containerStatuses": [status]})


def running(**more: Any) -> dict[str, Any]:
    status = {"name": "main", "ready": True, "state": {"running": {"startedAt": "2026-01-01T01:00:00Z"}}}
    return pod(spec={"nodeName": "n1"}, status={"phase": "Running", "containerStatuses": [status]}, **more)


CLAIM = {
    "metadata": {"name": "part", "namespace": "ml"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "inference.gpushare.dev"}}]}},
}
CDI = "failed to create: unresolvable CDI devices gpushare.dev/gpu=GPU-0"
NO_SLOT = "0/3 nodes are available: 3 Insufficient gpushare.dev/inference."


@pytest.mark.parametrize(
    ("facts", "stage", "words", "source"),
    [
        pytest.param(
            PodFacts(unscheduled(NO_SLOT), shares=with_status(**FULL)),
            Stage.SCHEDULER, "all 16 are held, on 2 GPUs", "gpushare/inference", id="full",
        ),
        pytest.param(
            PodFacts(unscheduled(NO_SLOT), shares=with_status(
                conditions=[{"type": "Ready", "status": "False", "reason": "NoMatchingNodes", "message": "no node",
                             "lastTransitionTime": "2026-01-01T00:00:00Z"}])),
            Stage.SCHEDULER, "not Ready: NoMatchingNodes: no node", "gpushare/inference", id="not-ready",
        ),
        pytest.param(
            PodFacts(unscheduled(NO_SLOT), shares=with_status(slots={"total": 16, "used": 4})),
            Stage.SCHEDULER, "12 of 16 are free, but on no node that fits", "gpushare/inference", id="elsewhere",
        ),
        pytest.param(
            PodFacts(unscheduled(NO_SLOT), shares=with_status(slots={"total": 2, "used": 0}, gpus={"ready": 1}),
                     placed=[pod("b"), pod("c"), pod("d", asks="other")]),
            Stage.SCHEDULER, "all 2 are held, on 1 GPU", "gpushare/inference", id="full-and-not-reported-yet",
        ),
        pytest.param(
            PodFacts(unscheduled(NO_SLOT), shares=with_status(slots={"total": 16, "used": 16}), placed=[pod("b")]),
            Stage.SCHEDULER, ": 15 of 16 are free, but on no node that fits", "gpushare/inference", id="pods-count",
        ),
        pytest.param(
            PodFacts(unscheduled(NO_SLOT), shares=with_status(slots={"total": 16, "used": 4})),
            Stage.SCHEDULER, "by the share's status, which may be half a minute old, 12 of 16", "gpushare/inference",
            id="a-count-that-is-not-of-now",
        ),
        pytest.param(
            PodFacts(unscheduled("0/3 nodes are available: 3 Insufficient cpu."), shares=with_status(**FULL)),
            Stage.SCHEDULER, "3 Insufficient cpu", "pod/app", id="cpu",
        ),
        pytest.param(
            PodFacts(pod(asks="infrence"), shares=with_status(**FULL)),
            Stage.SCHEDULER, '"infrence", which does not exist', "pod/app", id="no-share",
        ),
        pytest.param(
            PodFacts(pod(spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]})),
            Stage.SCHEDULER, "scheduling gate kueue.x-k8s.io/admission", "pod/app", id="gated",
        ),
        pytest.param(
            PodFacts(pod()), Stage.SCHEDULER, "default-scheduler has not looked at it yet", "pod/app", id="new",
        ),
        pytest.param(
            PodFacts(unscheduled("cannot allocate all claims", spec={
                "containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": "part"}]}),
                shares=with_status(claims={"unplaced": [{"claim": "ml/part", "message": "10 percent lack"}]}),
                claims=[CLAIM]),
            Stage.SCHEDULER, "fits on no GPU of share inference: 10 percent lack", "gpushare/inference", id="claim",
        ),
        pytest.param(
            PodFacts(waiting("CreateContainerError", CDI), shares=with_status(**FULL), nodes=[NODE]),
            Stage.GATE, "the gate of GPU GPU-0 is closed: its MPS daemon is not ready: ControlTimeout: no answer",
            "gpunode/n1", id="gate",
        ),
        pytest.param(
            PodFacts(waiting("CreateContainerConfigError", "gpushare: perGpu was lowered")),
            Stage.GATE, "gpushare: perGpu was lowered", "pod/app", id="config",
        ),
        pytest.param(
            PodFacts(waiting("ErrImagePull", "not found")), Stage.START, "ErrImagePull img:1", "pod/app", id="image",
        ),
        pytest.param(
            PodFacts(waiting("ContainerCreating"), events=[event("FailedMount", "no such secret")]),
            Stage.START, "FailedMount: no such secret", "pod/app, event FailedMount", id="mount",
        ),
        pytest.param(
            PodFacts(pod(status={"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Available: 0"})),
            Stage.KUBELET, "the kubelet refused it: UnexpectedAdmissionError: Available: 0", "pod/app", id="kubelet",
        ),
        pytest.param(
            PodFacts(running(), nodes=[gpu_node("GPU-0", findings=[
                {"uuid": "GPU-0", "share": "inference", "reason": "MemoryAboveGrant", "podUid": "uid-app",
                 "granted": 1, "observed": 2, "message": "uses 2", "since": "2026-01-01T00:00:00Z"}])]),
            Stage.RUNNING, "above its grant: MemoryAboveGrant: uses 2", "gpunode/n1, findings", id="finding",
        ),
        pytest.param(
            PodFacts(running(), events=[event("AttachRefused", "no grant", at="2026-01-01T02:00:00Z")]),
            Stage.RUNNING, "AttachRefused: no grant", "pod/app, event AttachRefused", id="attach",
        ),
    ],
)  # fmt: skip
def test_what_holds_a_pod_back_is_named_with_the_object_on_which_it_stands(
    facts: PodFacts, stage: Stage, words: str, source: str
) -> None:
    answer = why(facts)
    assert (answer.stage, answer.source) == (stage, source)
    assert words in answer.sentence
    assert report(answer).code == 1
    assert words in shown(report(answer))


def test_a_pod_that_runs_has_its_gpu_and_its_grant_and_is_no_problem() -> None:
    holder = {"uuid": "GPU-0", "share": "inference", "slots": [0], "pods": ["ml/app"]}
    answer = why(PodFacts(running(), nodes=[gpu_node("GPU-0", holders=[holder])]))
    assert "it runs on GPU GPU-0 of node n1: main has a slot of share inference" in answer.sentence
    assert report(answer).code == 0


def test_an_event_about_an_earlier_container_is_no_answer() -> None:
    old = event("AttachRefused", "no grant", at="2026-01-01T00:59:00Z")
    assert not why(PodFacts(running(), events=[old])).held


def test_a_pod_without_any_part_of_a_gpu_is_said_to_have_none() -> None:
    facts = PodFacts(running(), nodes=[NODE])
    assert (
        "asks for no slot and no claim" in why(replace(facts, pod={**running(), "spec": {"nodeName": "n1"}})).sentence
    )


NO_QUOTA = "insufficient unused quota for gpushare.dev/inference in flavor shared, 1 more needed"


def condition(kind: str, status: str = "True", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "message": message}


RESERVED, UNRESERVED = condition("QuotaReserved"), condition("QuotaReserved", "False", NO_QUOTA)
EVICTED = condition("Evicted", message="Preempted to accommodate a workload")


def workload(*conditions: dict[str, str], owner: str = "train", created: str = "2026-01-01", **parts: Any) -> Any:
    """Kueue's, of the Job or pod `owner`."""
    reference = {"name": owner, "uid": f"uid-{owner}", "controller": True}
    return {
        "metadata": {"name": f"{owner}-1a2b3", "ownerReferences": [reference], "creationTimestamp": created},
        "spec": {"queueName": "team-a"} | parts.get("spec", {}),
        "status": {"conditions": list(conditions)} | parts.get("status", {}),
    }


@pytest.mark.parametrize(
    ("job", "words"),
    [
        pytest.param(workload(UNRESERVED), NO_QUOTA, id="quota"),
        pytest.param(workload(), "Kueue has not looked at it yet", id="new"),
        pytest.param(
            workload(RESERVED, status={"admissionChecks": [
                {"name": "budget", "state": "Pending", "message": "no budget left"},
                {"name": "nodes", "state": "Ready", "message": "there"}]}),
            "not every admission check has passed: budget is Pending: no budget left", id="check",
        ),
        pytest.param(
            workload(EVICTED, UNRESERVED, spec={"active": False}),
            "deactivated (spec.active: false): Preempted to accommodate a workload", id="inactive",
        ),
    ],
)  # fmt: skip
def test_a_suspended_job_is_explained_in_kueues_own_words(job: Any, words: str) -> None:
    answer = unmade("train", "ml", [], [job])
    assert answer is not None
    assert (answer.stage, answer.source) == (Stage.QUEUE, "workload/train-1a2b3")
    assert answer.sentence.startswith('Kueue holds it in LocalQueue "team-a": ')
    assert answer.sentence.endswith(words)
    assert report(answer).code == 1


def test_a_gated_pod_is_explained_by_its_own_workload() -> None:
    gated = pod(spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]})
    other = workload(condition("QuotaReserved", "False", "another"), owner="other", created="2026-02-01")
    answer = why(PodFacts(gated, workloads=[other, workload(UNRESERVED, owner="app"), other]))
    assert (answer.stage, answer.sentence) == (Stage.QUEUE, f'Kueue holds it in LocalQueue "team-a": {NO_QUOTA}')
    admitted = workload(RESERVED, condition("Admitted"), owner="app")
    assert "scheduling gate" in why(PodFacts(gated, workloads=[admitted])).sentence, "Kueue holds it no longer"


def test_of_a_cron_jobs_runs_the_newest_that_waits_is_explained() -> None:
    first = workload(condition("QuotaReserved", "False", "the first"), owner="train-100", created="2026-01-01")
    second = workload(condition("QuotaReserved", "False", "the second"), owner="train-200", created="2026-01-02")
    answer = unmade("train", "ml", [], [second, first])
    assert answer is not None
    assert answer.sentence.endswith("the second")


@pytest.mark.parametrize("ended", [condition("Finished"), condition("Admitted")])
def test_what_kueue_lets_run_is_explained_by_who_refuses_its_pods(ended: dict[str, str]) -> None:
    failures = [event("FailedCreate", DENIED, "Job/train")]
    answer = unmade("train", "ml", failures, [workload(RESERVED, ended)])
    assert answer is not None
    assert answer.stage is Stage.ADMISSION
    held = unmade("train", "ml", failures, [workload(UNRESERVED)])
    assert held is not None
    assert held.stage is Stage.QUEUE, "a refusal from before it was suspended says nothing of now"


def test_a_pod_that_leaves_because_kueue_evicted_it_says_so() -> None:
    leaves = running(metadata={
        "deletionTimestamp": "2026-01-01T03:00:00Z", "ownerReferences": [{"name": "train", "uid": "uid-train"}]
    })  # fmt: skip
    evicted = why(PodFacts(leaves, workloads=[workload(EVICTED, UNRESERVED)]))
    assert evicted.sentence.endswith("; Kueue evicted it: Preempted to accommodate a workload")
    again = workload(condition("Evicted", "False", "before"), RESERVED, condition("Admitted"))
    assert "Kueue" not in why(PodFacts(leaves, workloads=[again])).sentence


DENIED = 'Error creating: admission webhook "pods.gpushare.dev" denied the request: spec.x: "70" is above 50'


@pytest.mark.parametrize(
    ("asked", "about"),
    [
        ("app", "ReplicaSet/app-5d8f"),  # the Deployment's name
        ("app-5d8f", "ReplicaSet/app-5d8f"),
        ("app-5d8f-x7k2p", "ReplicaSet/app-5d8f"),  # a pod that never was
        ("train", "Job/train"),
    ],
)
def test_a_refused_pod_is_explained_by_its_owners_event(asked: str, about: str) -> None:
    old = event("FailedCreate", "Error creating: quota", about, at="2025-12-31T00:00:00Z")
    answer = refused(asked, "ml", [old, event("FailedCreate", DENIED, about), event("FailedCreate", "x", "Job/other")])
    assert answer is not None
    assert answer.stage is Stage.ADMISSION
    assert answer.sentence == 'gpushare\'s webhook refuses its pods: spec.x: "70" is above 50'
    assert (
        answer.source == f"{about.replace(about[0], about[0].lower(), 1).lower()} in namespace ml, event FailedCreate"
    )


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('failed calling webhook "pods.gpushare.dev": no endpoints', "does not reach gpushare's webhook"),
        ('admission webhook "other.io" denied the request: no', "the webhook other.io refuses its pods: no"),
        ("exceeded quota", "its pods cannot be made: exceeded quota"),
    ],
)
def test_other_refusals_are_told_apart(message: str, words: str) -> None:
    answer = refused("app", "ml", [event("FailedCreate", message, "ReplicaSet/app-1")])
    assert answer is not None
    assert words in answer.sentence


@pytest.mark.parametrize(
    ("name", "owner", "made"),
    [
        ("app-5d8f6c", "app", True),  # a ReplicaSet of a Deployment
        ("train-29384756", "train", True),  # a CronJob's Job
        ("web-0", "web", True),  # a StatefulSet's pod
        ("app-backend", "app", False),
        ("app-backend-5d8f6c", "app", False),
        ("application", "app", False),
        ("app", "app-5d8f6c", False),
    ],
)
def test_what_kubernetes_makes_is_told_from_a_longer_name(name: str, owner: str, made: bool) -> None:
    assert is_made_by(name, owner) == made


def test_nothing_is_made_up_for_a_name_that_nobody_reports() -> None:
    assert refused("app", "ml", [event("FailedCreate", "x", "Job/other")]) is None


def test_of_an_owners_pods_the_one_that_does_not_run_is_explained() -> None:
    sound, stuck = running(), waiting("ErrImagePull")
    done = pod("done", status={"phase": "Succeeded"})
    assert worst_first([done, sound, stuck]) == [stuck, sound, done]


def test_a_failed_pod_is_explained_unless_its_owner_has_made_another_since() -> None:
    sound, failed = running(), pod("failed", status={"phase": "Failed"})
    sound["metadata"]["creationTimestamp"], failed["metadata"]["creationTimestamp"] = "2026-01-01", "2026-01-02"
    assert worst_first([sound, failed]) == [failed, sound]
    sound["metadata"]["creationTimestamp"] = "2026-01-03"
    assert worst_first([failed, sound]) == [sound, failed]
    assert worst_first([failed]) == [failed]


def test_the_answers_about_a_node_need_none_that_cannot_be_read() -> None:
    nodes: list[GpuNode] = []
    assert "its state cannot be read" in why(PodFacts(waiting("CreateContainerError", CDI), nodes=nodes)).sentence


def test_a_later_event_of_another_writer_hides_no_event_of_ours() -> None:
    """Who may write events in a namespace may write any but ours; where policies are off, ours too."""
    true = event("AttachRefused", "TooManyProcesses", at="2026-01-01T02:00:00Z", reportingInstance="agent-1")
    tenants = [
        event("AttachRefused", "all is well", at="2026-01-01T03:00:00Z", reportingComponent="tenant"),
        event("AttachRefused", "all is well", at="2026-01-01T03:00:00Z", reportingInstance="me"),
        event("ClientFaulted", "never mind", at="2026-01-01T04:00:00Z", reportingInstance="me"),
    ]
    sentence = why(PodFacts(running(), events=[true, *tenants])).sentence
    assert sentence.endswith("; AttachRefused: TooManyProcesses; AttachRefused: all is well; ClientFaulted: never mind")
    assert why(PodFacts(running(), events=tenants[:1])).held is False


def test_while_a_pod_starts_warnings_of_all_writers_are_told_ours_first() -> None:
    events = [
        event("GateClosed", "wait", at="2026-01-01T00:00:00Z"),
        event("FailedMount", "no such secret", at="2026-01-01T01:00:00Z", reportingComponent="kubelet"),
        event("Fine", "all is well", at="2026-01-01T02:00:00Z", reportingComponent="tenant"),
        event("Fine", "really", at="2026-01-01T03:00:00Z", reportingComponent="other"),
    ]
    answer = why(PodFacts(waiting("ContainerCreating"), events=events))
    assert "warnings are GateClosed: wait; Fine: really; Fine: all is well" in answer.sentence


ASKS = {"resources": {"limits": {"gpushare.dev/inference": "1"}}}


@pytest.mark.parametrize(
    ("spec", "held"),
    [
        ({"containers": [ASKS, ASKS, {}]}, 2),
        ({"containers": [ASKS], "initContainers": [ASKS]}, 1),
        ({"containers": [ASKS], "initContainers": [ASKS | {"restartPolicy": "Always"}]}, 2),
        ({"containers": [{}], "initContainers": [ASKS | {"restartPolicy": "Always"}, ASKS]}, 2),
        ({"containers": []}, 0),
    ],
)
def test_slots_of_pods_are_counted_as_the_scheduler_counts_them(spec: dict[str, Any], held: int) -> None:
    facts = PodFacts(pod(), shares=with_status(), placed=[pod(spec=spec)])
    assert held_by_pods(facts, facts.shares["inference"]) == held


TEMPLATED = pod(asks="", spec={"containers": [], "resourceClaims": [
    {"name": "gpu", "resourceClaimTemplateName": "small.mixed"}]})  # fmt: skip
QUOTA = (
    'PodResourceClaim gpu: failed to create ResourceClaim: resourceclaims "app-gpu-x" is forbidden: exceeded quota: '
    "gpus, requested: 1, used: 8, limited: 8"
)


@pytest.mark.parametrize(
    ("events", "words", "hint"),
    [
        ([], "its ResourceClaim of template small.mixed is not made yet", ""),
        ([event("FailedResourceClaimCreation", QUOTA, reportingComponent="resource_claim")],
         "cannot be made: PodResourceClaim gpu: failed", "kubectl describe resourcequota -n ml"),
        ([event("FailedResourceClaimCreation", "was refused", reportingComponent="resource_claim")],
         "cannot be made: was refused", "ResourceClaimTemplate small.mixed"),
    ],
)  # fmt: skip
def test_a_claim_that_cannot_be_made_is_why_the_scheduler_waits(events: list[Any], words: str, hint: str) -> None:
    answer = why(PodFacts(TEMPLATED, events=events))
    assert words in answer.sentence
    assert hint in answer.hint
    assert answer.stage is Stage.ADMISSION


REFUSED = {
    "type": "WritesAccepted", "status": "False", "reason": "WriteRefused",
    "message": "DeviceClass small: refused by policy no-classes", "lastTransitionTime": "2026-01-01T00:00:00Z",
}  # fmt: skip
SAID = "of share {}: WriteRefused: DeviceClass small: refused by policy no-classes"


@pytest.mark.parametrize(
    ("body", "share", "says"),
    [
        (TEMPLATED, "mixed", True),
        (TEMPLATED, "other", False),
        (unscheduled("cannot allocate all claims", asks="", spec={"containers": [], "resourceClaims": [
            {"name": "gpu", "resourceClaimName": "part"}]}), "inference", True),
    ],
    ids=["its template's share", "another share", "its claim's share"],
)  # fmt: skip
def test_a_claim_that_waits_for_what_the_api_server_refuses_says_so(
    body: dict[str, Any], share: str, says: bool
) -> None:
    (listed,) = with_status(conditions=[REFUSED]).values()
    answer = why(PodFacts(body, claims=[CLAIM], shares={share: listed}))
    assert (SAID.format(listed.name) in answer.sentence) is says


@pytest.mark.parametrize(("serves", "says"), [("inference", True), ("other", False)])
def test_a_claim_that_waits_for_a_nodes_refused_slice_says_so(serves: str, says: bool) -> None:
    body = unscheduled("cannot allocate all claims", asks="", spec={"containers": [], "resourceClaims": [
        {"name": "gpu", "resourceClaimName": "part"}]})  # fmt: skip
    daemon = {"uuid": "GPU-0", "share": serves, "ready": True, "reason": "Ready"}
    node = gpu_node("GPU-0", daemons=[daemon], conditions=[REFUSED])
    answer = why(PodFacts(body, claims=[CLAIM], shares=with_status(), nodes=[node]))
    assert ("of node n1: WriteRefused: DeviceClass small" in answer.sentence) is says


def test_a_pods_own_events_are_said_where_its_status_says_nothing() -> None:
    told = event("NetworkNotReady", "no network", reportingComponent="somebody")
    answer = why(PodFacts(pod(), events=[told], shares=with_status()))
    assert answer.sentence.endswith("has not looked at it yet; NetworkNotReady: no network")


def test_a_claim_on_a_share_without_gpus_is_told_why_it_has_none() -> None:
    waits = unscheduled("cannot allocate all claims", asks="", spec={"containers": [], "resourceClaims": [
        {"name": "gpu", "resourceClaimName": "part"}]})  # fmt: skip
    not_ready = {"type": "Ready", "status": "False", "reason": "NoMatchingNodes", "message": "no node",
                 "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    answer = why(PodFacts(waits, claims=[CLAIM], shares=with_status(conditions=[not_ready])))
    assert answer.sentence == "its claim waits for a GPU of share inference, which has none: NoMatchingNodes: no node"


def test_a_tainted_node_is_named_where_it_is_the_only_one() -> None:
    said = "0/1 nodes are available: 1 node(s) had untolerated taint(s)."
    assigned = [{"uuid": "GPU-0", "share": "inference"}]
    node = GpuNode.model_validate(gpu_node("GPU-0").wire() | {"spec": {"assignments": assigned}})
    taint = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}
    cluster_node = {"metadata": {"name": "n1"}, "spec": {"taints": [taint]}}
    facts = PodFacts(unscheduled(said), shares=with_status(**FULL), nodes=[node], tainted=[cluster_node])
    answer = why(facts)
    assert answer.sentence.endswith("n1 has the taint sku=gpu:NoSchedule, which it does not tolerate")
    assert "webhook.tolerateTaints" in answer.hint
    free = replace(facts, tainted=[{"metadata": {"name": "n1"}, "spec": {}}])
    assert "taint sku" not in why(free).sentence


def of_deployment(name: str, replica_set: str, **more: Any) -> dict[str, Any]:
    made = pod(spec={"nodeName": "n1"}, status={"phase": "Running"}) | more
    owner = {"kind": "ReplicaSet", "name": replica_set, "controller": True}
    return made | {"metadata": made["metadata"] | {"name": name, "ownerReferences": [owner]}}


@pytest.mark.parametrize(
    ("replica_set", "named"), [("app-5d4f", True), ("app-7c8d", False), ("other-5d4f", False)],
    ids=["an older ReplicaSet", "a replica beside it", "another Deployment"],
)  # fmt: skip
def test_the_old_pod_of_its_own_deployment_may_hold_the_last_slot(replica_set: str, named: bool) -> None:
    new = unscheduled(NO_SLOT)
    new["metadata"] |= {"ownerReferences": [{"kind": "ReplicaSet", "name": "app-7c8d", "controller": True}]}
    old = of_deployment(f"{replica_set}-x", replica_set)
    answer = why(PodFacts(new, shares=with_status(**FULL), beside=[new, old]))
    assert ("of its own Deployment" in answer.sentence) is named
    assert ("maxSurge: 0" in answer.hint) is named


def test_a_claim_pod_that_is_deleted_waits_for_its_nodes_agent() -> None:
    silent = gpu_node("GPU-0", conditions=[SILENT])
    spec = {"nodeName": "n1", "resourceClaims": [{"name": "c", "resourceClaimName": "part"}]}
    body = pod(spec=spec, status={"phase": "Running"})
    body["metadata"] |= {"deletionTimestamp": "2026-01-01T01:00:00Z"}
    answer = why(PodFacts(body, nodes=[silent], claims=[CLAIM]))
    assert "its kubelet waits for the node's agent" in answer.sentence
    assert answer.source == "gpunode/n1"


def test_a_job_past_its_deadline_says_what_its_event_says() -> None:
    told = event("DeadlineExceeded", "Job was active longer than specified deadline", about="Job/train")
    answer = unmade("train", "ml", [], [], [told])
    assert answer is not None
    assert answer.sentence == "it has no pod: DeadlineExceeded: Job was active longer than specified deadline"


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (("Killing", "Stopping container app"), "Killing: Stopping container app"),
        (("TaintManagerEviction", "Marking for deletion Pod ml/app"), "TaintManagerEviction: Marking for deletion"),
    ],
    ids=["a drain", "a taint"],
)
def test_a_pod_that_is_gone_is_not_explained_by_a_warning_of_its_life(last: tuple[str, str], told: str) -> None:
    warned = event("MissingClusterDNS", "kubelet does not have ClusterDNS IP configured", at="2026-01-01T00:00:01Z")
    killed = event("Killing", "Stopping container app", at="2026-01-01T00:00:03Z", type="Normal")
    gone = event(*last, at="2026-01-01T00:00:02Z", type="Normal")
    answer = unmade("app", "ml", [], [], [warned, gone, killed])
    assert answer is not None
    assert f"was deleted; its last word: {told}" in answer.sentence
    assert "is not made again" in answer.hint


def test_a_quota_is_told_without_the_controllers_words_and_with_a_hint() -> None:
    said = '(combined from similar events): Error creating: pods "app-x" is forbidden: exceeded quota: gpus'
    answer = refused("app", "ml", [event("FailedCreate", said, about="ReplicaSet/app")])
    assert answer is not None
    assert answer.sentence == 'its pods cannot be made: pods "app-x" is forbidden: exceeded quota: gpus'
    assert answer.hint.startswith("kubectl describe resourcequota -n ml")
