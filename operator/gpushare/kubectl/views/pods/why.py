"""`kubectl gpushare why POD`: one answer to why a pod does not run, or on what it runs. Pure.

A pod passes Kueue's queue, if it is in one, admission, the scheduler, the kubelet's admission, the gate of its GPU, its
start and the queue for places of its GPU, in this order. The first that holds it back is the answer, with the object
that shows it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from gpushare.api import names
from gpushare.api.conditions import ConditionType, EventReason
from gpushare.kube.claims import allocation_results
from gpushare.kube.pods import Pod, container_statuses, controller_of, full_name, phase
from gpushare.kube.resources import Object
from gpushare.kubectl.output.report import Report, Sentences
from gpushare.kubectl.views.events import is_ours, last_seen, object_of, reporter
from gpushare.kubectl.views.objects import ready_condition
from gpushare.kubectl.views.places import holders_in, waits_of
from gpushare.kubectl.views.pods.kueue import QueueHold, eviction, hold, workload_named, workload_of
from gpushare.kubectl.views.pods.pod import (
    PodFacts,
    asked_shares,
    claim_shares,
    findings,
    gpus,
    grants,
    held_by_pods,
    own_claims,
    unmade_claims,
)
from gpushare.kubectl.views.pods.taints import TOLERATE, kept_off
from gpushare.kubectl.views.pods.trouble import Trouble, trouble
from gpushare.messages.wording import are, count_of

_DENIED = re.compile(r'admission webhook "(?P<webhook>[^"]+)" denied the request: (?P<said>.*)', re.DOTALL)
_UNREACHED = re.compile(r'failed calling webhook "(?P<webhook>[^"]*gpushare\.dev)"')
_GATE = re.compile(rf"unresolvable CDI devices .*?{re.escape(names.CDI_KIND)}=(?P<uuid>[A-Za-z0-9-]+)")
CLAIM_FAILED = "FailedResourceClaimCreation"
"""Reason of the event by which Kubernetes' controller says why a pod's claim is not there."""
TAKEN_AWAY = frozenset({"TaintManagerEviction", "Preempted", "Evicted", "DeletingNode"})
"""Reasons of events by which Kubernetes says why it deleted a pod."""
GONE = "a pod without a controller is not made again, as after kubectl drain; a Deployment or Job makes another"
MOST_WARNINGS = 3
_GENERATED = r"-([bcdfghjklmnpqrstvwxz2456789]+|[0-9]+)"
"""What Kubernetes appends: random characters, which form no words, or a number."""
WITHDRAWN = (
    "the scheduler did not know yet that slots were withdrawn, or the kubelet restarted; a controller replaces such a "
    "pod by itself, a bare one must be created again"
)


class Stage(StrEnum):
    """The place where the pod is, or is held back."""

    QUEUE = "queue"
    ADMISSION = "admission"
    SCHEDULER = "scheduler"
    KUBELET = "kubelet"
    GATE = "gate"
    START = "start"
    PLACE = "place"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class WhyAnswer:
    """`source`: the object that shows it; `held`: False where nothing is wrong."""

    pod: str
    stage: Stage
    sentence: str
    source: str
    hint: str = ""
    held: bool = True


def report(answer: WhyAnswer) -> Report:
    lines = [(f"{answer.pod}: ", answer.sentence), ("  at:    ", answer.stage.value), ("  see:   ", answer.source)]
    if answer.hint:
        lines.append(("  hint:  ", answer.hint))
    return Report(asdict(answer), [Sentences(lines)], code=1 if answer.held else 0)


def unmade(
    name: str, namespace: str, failures: Iterable[Object], workloads: Iterable[Object], told: Iterable[Object] = ()
) -> WhyAnswer | None:
    """Why there is no pod `name`, or none of the owner `name`; None where nothing says so. `failures`: as of `refused`;
    `workloads`: Kueue's, of the namespace. What Kueue holds is not made, so an older refusal says nothing of now.
    `told`: events about an object of that name, such as a Job past its deadline, whose pods are gone.
    """
    workload = workload_named(workloads, lambda owner: _is_of(owner, name))
    held = hold(workload) if workload else None
    if held:
        return _queued(f"{namespace}/{name}", held)
    return refused(name, namespace, failures) or _warned(name, namespace, told)


def _warned(name: str, namespace: str, told: Iterable[Object]) -> WhyAnswer | None:
    known = list(told)
    was_pod = [event for event in known if (event.get("involvedObject") or {}).get("kind") == "Pod"]
    warnings = [event for event in known if event.get("type") == "Warning" and event not in was_pod]
    if not warnings and not was_pod:
        return None
    if warnings:
        event = max(warnings, key=last_seen)
        sentence, hint = f"it has no pod: {event.get('reason')}: {event.get('message')}", ""
    else:
        # A warning from its life does not say why it is gone, and a drain leaves no event but the kubelet's own.
        event = max([event for event in was_pod if event.get("reason") in TAKEN_AWAY] or was_pod, key=last_seen)
        sentence = f"the pod was there and was deleted; its last word: {event.get('reason')}: {event.get('message')}"
        hint = GONE
    source = f"{object_of(event)} in namespace {namespace}, event {event.get('reason')}"
    return WhyAnswer(f"{namespace}/{name}", Stage.ENDED, sentence, source, hint)


def _queued(name: str, held: QueueHold) -> WhyAnswer:
    sentence = f'Kueue holds it in LocalQueue "{held.queue}": {held.message}'
    hint = "it starts by itself once Kueue admits it; kubectl describe clusterqueue shows what holds the quota"
    return WhyAnswer(name, Stage.QUEUE, sentence, f"workload/{held.workload}", hint)


def refused(name: str, namespace: str, failures: Iterable[Object]) -> WhyAnswer | None:
    """Why a controller could not make the pod `name`, or one of the owner `name`. `failures`: events FailedCreate."""
    own = [failure for failure in failures if _is_of(str((failure.get("involvedObject") or {}).get("name", "")), name)]
    if not own:
        return None
    event = max(own, key=last_seen)
    message, source = str(event.get("message", "")), f"{object_of(event)} in namespace {namespace}, event FailedCreate"
    answer = f"{namespace}/{name}"
    if denied := _DENIED.search(message):
        by = "gpushare's webhook" if "gpushare" in denied["webhook"] else f"the webhook {denied['webhook']}"
        hint = "correct the pod template; its controller tries again by itself" if "gpushare" in by else ""
        return WhyAnswer(answer, Stage.ADMISSION, f"{by} refuses its pods: {denied['said']}", source, hint)
    if _UNREACHED.search(message):
        sentence = f"its pods cannot be admitted, since the API server does not reach gpushare's webhook: {message}"
        return WhyAnswer(answer, Stage.ADMISSION, sentence, source, "kubectl gpushare check")
    hint = _quota_hint(namespace, "end a pod that counts") if "exceeded quota" in message else ""
    said = message.removeprefix("(combined from similar events): ").removeprefix("Error creating: ")
    return WhyAnswer(answer, Stage.ADMISSION, f"its pods cannot be made: {said}", source, hint)


def _quota_hint(namespace: str, less: str) -> str:
    return (
        f"kubectl describe resourcequota -n {namespace} shows the quota: {less}, or raise it; it is tried again by "
        "itself"
    )


def _is_of(owner: str, name: str) -> bool:
    """Tells whether the pod or the owner `name` is of that ReplicaSet, Job or other owner."""
    return is_made_by(owner, name) or is_made_by(name, owner)


def is_made_by(name: str, owner: str) -> bool:
    """Tells whether it is `owner`, or is named as Kubernetes names what it makes for it, such as a ReplicaSet or a
    pod."""
    return name == owner or re.fullmatch(re.escape(owner) + _GENERATED, name) is not None


def worst_first(pods: Iterable[Pod]) -> list[Pod]:
    """The pods of one owner, those that do not run first. One that has failed is history if a later one was made."""
    known = list(pods)
    latest = max((_made(pod) for pod in known), default="")

    def rank(pod: Pod) -> tuple[int, str]:
        if phase(pod) in ("Succeeded", "Failed"):
            is_history = phase(pod) == "Succeeded" or _made(pod) < latest
            return (3 if is_history else 1), full_name(pod)
        return (2 if _ready(pod) else 0), full_name(pod)

    return sorted(known, key=rank)


def _made(pod: Pod) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")


def _ready(pod: Pod) -> bool:
    return phase(pod) == "Running" and all(status.get("ready") for status in container_statuses(pod))


def why(facts: PodFacts) -> WhyAnswer:
    pod, source = facts.pod, f"pod/{facts.pod['metadata']['name']}"
    claims = own_claims(facts)
    asked = list(dict.fromkeys([*asked_shares(facts), *claim_shares(claims)]))
    if phase(pod) in ("Succeeded", "Failed"):
        return _ended(facts, source)
    if since := pod["metadata"].get("deletionTimestamp"):
        workload = workload_of(pod, facts.workloads)
        if claims and facts.node is not None and facts.node.silence:
            sentence = (
                "it is being deleted, and its kubelet waits for the node's agent, which has to give its claim back"
            )
            where = f"gpunode/{facts.node.name}"
            return WhyAnswer(
                facts.name, Stage.ENDED, f"{sentence}: {facts.node.silence}", where, "kubectl gpushare check"
            )
        evicted = eviction(workload) if workload else ""
        cause = f"; Kueue evicted it: {evicted}" if evicted else ""
        return WhyAnswer(facts.name, Stage.ENDED, f"it is being deleted, since {since} at the latest{cause}", source)
    if not (pod.get("spec") or {}).get("nodeName"):
        return _unscheduled(facts, asked, claims, source)
    if not asked:
        problem = trouble(pod)
        cause = f"; it does not run: {problem.cause}" if problem else ""
        sentence = f"it asks for no slot and no claim of a share{cause}"
        return WhyAnswer(
            facts.name, Stage.START if problem else Stage.RUNNING, sentence, source, held=problem is not None
        )
    if (problem := trouble(pod)) is not None:
        return _not_started(facts, problem, source)
    if phase(pod) != "Running":
        return _starting(facts, source)
    return _running(facts, source)


def _ended(facts: PodFacts, source: str) -> WhyAnswer:
    status = facts.pod.get("status") or {}
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    if reason == "UnexpectedAdmissionError" or reason.startswith("OutOf"):
        sentence = f"the kubelet refused it: {reason}: {message}"
        return WhyAnswer(facts.name, Stage.KUBELET, sentence, source, WITHDRAWN)
    ended = _told(_ours(facts, (EventReason.CLIENT_TERMINATED, EventReason.PROCESS_ENDED)))
    if phase(facts.pod) == "Succeeded":
        return WhyAnswer(facts.name, Stage.ENDED, "it has ended with success", source, held=False)
    problem = trouble(facts.pod)
    cause = problem.cause if problem else f"{reason}: {message}".strip(": ")
    if ended:
        cause = f"{cause}; {ended}"
    return WhyAnswer(facts.name, Stage.ENDED, f"it has failed: {cause}", source, problem.hint if problem else "")


def _unscheduled(facts: PodFacts, asked: Sequence[str], claims: Sequence[Object], source: str) -> WhyAnswer:
    pod, name = facts.pod, facts.name
    gates = [str(gate.get("name")) for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]
    if gates:
        workload = workload_of(pod, facts.workloads)
        if workload and (held := hold(workload)):
            return _queued(name, held)
        sentence = f"the scheduler does not look at it before its scheduling gate {', '.join(gates)} is removed"
        return WhyAnswer(name, Stage.SCHEDULER, sentence, source, "whoever set the gate removes it, such as a queue")
    for share in asked:
        if facts.shares and share not in facts.shares:
            sentence = f'it asks for a slot of GpuShare "{share}", which does not exist'
            return WhyAnswer(name, Stage.SCHEDULER, sentence, source, f"there are {', '.join(sorted(facts.shares))}")
    conditions = (pod.get("status") or {}).get("conditions") or ()
    said = next(
        (str(condition.get("message") or "") for condition in conditions if condition.get("type") == "PodScheduled"),
        None,
    )
    if unmade_claims(facts):
        return _claim_not_made(facts, source)
    if said is None:
        scheduler = (pod.get("spec") or {}).get("schedulerName", "default-scheduler")
        warnings = _last_warnings(facts)
        sentence = f"the scheduler {scheduler} has not looked at it yet{f'; {_told(warnings)}' if warnings else ''}"
        return WhyAnswer(name, Stage.SCHEDULER, sentence, source)
    if off := kept_off(facts, asked):
        return WhyAnswer(name, Stage.SCHEDULER, f"it may go to no node of its share: {off}", source, TOLERATE)
    for claim in claims:
        if not allocation_results(claim):
            return _claim_pending(facts, claim, said)
    for share in asked:
        resource = facts.shares[share].resource if share in facts.shares else names.slot_resource(share)
        if f"Insufficient {resource}" in said:
            return _no_slot(facts, share, said)
    return WhyAnswer(name, Stage.SCHEDULER, f"the scheduler finds no node: {said}", source)


def _no_slot(facts: PodFacts, name: str, said: str) -> WhyAnswer:
    share, source = facts.shares.get(name), f"gpushare/{name}"
    whole = share is not None and share.whole
    waits = f"it waits for {'whole GPUs' if whole else 'a slot'} of share {name}"
    if share is None:
        return WhyAnswer(facts.name, Stage.SCHEDULER, f"{waits}: {said}", source)
    ready, slots = ready_condition(share), share.status.slots
    if ready is not None and ready.status != "True" and not slots.total:
        sentence = f"{waits}, which has none, since it is not Ready: {ready.reason}: {ready.message}"
        return WhyAnswer(facts.name, Stage.SCHEDULER, sentence, source, f"kubectl gpushare describe share {name}")
    counted = held_by_pods(facts, share)
    held = slots.used if counted is None else counted
    if held >= slots.total:
        where = "" if whole else f", on {count_of(share.status.gpus.ready, 'GPU')}"
        every = "its only one is" if slots.total == 1 else f"all {slots.total} are"
        sentence = f"{waits}: {every} held{where}"
        more = "give the share more GPUs" if whole else f"raise clients.{'queue.slots' if share.queue else 'perGpu'}"
        hint = f"end a pod that holds one (kubectl gpushare describe share {name}), or {more}"
        if replaced := replaced_pod(facts):
            sentence += f", one by {full_name(replaced)} of its own Deployment, which ends only once this one is ready"
            hint = (
                "let the old pod end first: spec.strategy.rollingUpdate {maxSurge: 0, maxUnavailable: 1}, or Recreate"
            )
        return WhyAnswer(facts.name, Stage.SCHEDULER, sentence, source, hint)
    old = "by the share's status, which may be half a minute old, " if counted is None else ""
    free = slots.total - held
    sentence = f"{waits}: {old}{free} of {slots.total} {are(free)} free, but on no node that fits the pod: {said}"
    return WhyAnswer(facts.name, Stage.SCHEDULER, sentence, source, f"kubectl gpushare describe share {name}")


def _claim_not_made(facts: PodFacts, source: str) -> WhyAnswer:
    """What Kubernetes' controller of claims says: the scheduler waits for it without a word."""
    template = unmade_claims(facts)[0]
    made_for = template.rpartition(".")[2]  # a size stands before the share in its name
    refused = _refused_write(facts, [made_for] if made_for in facts.shares else [])
    failures = [event for event in _last_warnings(facts) if event.get("reason") == CLAIM_FAILED]
    if not failures:
        sentence = f"its ResourceClaim of template {template} is not made yet{refused}"
        return WhyAnswer(facts.name, Stage.ADMISSION, sentence, source)
    said = str(failures[0].get("message"))
    if "exceeded quota" in said:
        hint = _quota_hint(str(facts.pod["metadata"]["namespace"]), "end a pod whose claim counts")
    else:
        hint = f"kubectl gpushare events -A, and ResourceClaimTemplate {template}; it is tried again by itself"
    sentence = f"its ResourceClaim of template {template} cannot be made: {said}{refused}"
    return WhyAnswer(facts.name, Stage.ADMISSION, sentence, f"{source}, event {CLAIM_FAILED}", hint)


def replaced_pod(facts: PodFacts) -> Pod | None:
    """A pod of an older ReplicaSet of the same Deployment that runs and asks for the same; None: there is none."""
    kind, owner = controller_of(facts.pod)
    wanted = set(asked_shares(facts))
    for pod in facts.beside if kind == "ReplicaSet" else ():
        other_kind, other = controller_of(pod)
        same = other_kind == kind and other != owner and other.rpartition("-")[0] == owner.rpartition("-")[0]
        if same and phase(pod) == "Running" and wanted & set(asked_shares(replace(facts, pod=pod))):
            return pod
    return None


def _claim_pending(facts: PodFacts, claim: Object, said: str) -> WhyAnswer:
    full = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
    refused = _refused_write(facts, [name for name in claim_shares([claim]) if name in facts.shares])
    for share in facts.shares.values():
        for waiting in share.status.claims.unplaced if share.status.claims else ():
            if waiting.claim == full:
                sentence = f"its claim fits on no GPU of share {share.name}: {waiting.message}{refused}"
                hint = f"ask for less, or end a claim that holds it (kubectl gpushare describe share {share.name})"
                return WhyAnswer(facts.name, Stage.SCHEDULER, sentence, f"gpushare/{share.name}", hint)
    for share in (facts.shares[name] for name in claim_shares([claim]) if name in facts.shares):
        ready = ready_condition(share)
        if not share.status.gpus.ready and ready is not None and ready.status != "True":
            sentence = (
                f"its claim waits for a GPU of share {share.name}, which has none: {ready.reason}: {ready.message}"
            )
            hint = f"kubectl gpushare describe share {share.name}"
            return WhyAnswer(facts.name, Stage.SCHEDULER, sentence, f"gpushare/{share.name}", hint)
    sentence = f"its claim is not allocated: {said}{refused}"
    return WhyAnswer(facts.name, Stage.SCHEDULER, sentence, f"resourceclaim/{full}")


def _refused_write(facts: PodFacts, shares: Sequence[str]) -> str:
    """A clause about what the API server refuses to take for one of the shares, such as its DeviceClass, or of one of
    their nodes, such as its ResourceSlice; or nothing."""
    of_shares = [(f"share {facts.shares[name].name}", facts.shares[name].status.conditions) for name in shares]
    of_nodes = [
        (f"node {node.name}", node.status.conditions)
        for node in facts.nodes
        if any(daemon.share in shares for daemon in node.status.daemons)
    ]
    for whose, conditions in (*of_shares, *of_nodes):
        for condition in conditions:
            if condition.type == ConditionType.WRITES_ACCEPTED and condition.status != "True":
                return f"; of {whose}: {condition.reason}: {condition.message}"
    return ""


def _not_started(facts: PodFacts, problem: Trouble, source: str) -> WhyAnswer:
    gate = _GATE.search(problem.cause)
    if gate is None:
        stage = Stage.GATE if "gpushare: " in problem.cause else Stage.START
        if problem.reason in ("ContainerCreating", "PodInitializing"):
            return _starting(facts, source)
        return WhyAnswer(facts.name, stage, f"it does not run: {problem.cause}", source, problem.hint)
    node, uuid = facts.node, gate["uuid"]
    daemon = next((item for item in node.status.daemons if item.uuid == uuid), None) if node else None
    where = f"gpunode/{node.name}" if node else source
    if daemon is None:
        state = "its share no longer has it" if node else "its state cannot be read"
    elif daemon.resource:
        state = "it is ready by now" if daemon.ready else f"it is not ready: {daemon.reason}: {daemon.message}"
    elif daemon.ready:
        state = "its MPS daemon is ready by now; the kubelet tries again within minutes"
    else:
        state = f"its MPS daemon is not ready: {daemon.reason}: {daemon.message}"
    hint = "the container starts by itself once the GPU is ready"
    return WhyAnswer(facts.name, Stage.GATE, f"the gate of GPU {uuid} is closed: {state}", where, hint)


def _starting(facts: PodFacts, source: str) -> WhyAnswer:
    warnings = _last_warnings(facts)
    if not warnings:
        return WhyAnswer(facts.name, Stage.START, "it is scheduled, and its containers are being started", source)
    are = "last warning is" if len(warnings) == 1 else "last warnings are"
    sentence = f"its containers are being started; the {are} {_told(warnings)}"
    return WhyAnswer(facts.name, Stage.START, sentence, f"{source}, event {warnings[0].get('reason')}")


def _running(facts: PodFacts, source: str) -> WhyAnswer:
    has = "; ".join(f"{container} has {amounts}" for container, amounts in grants(facts))
    where = " and ".join(f"GPU {gpu.uuid} of node {gpu.node}" for gpu in gpus(facts))
    sentence = f"it runs{f' on {where}' if where else ''}{f': {has}' if has else ''}"
    above = findings(facts)
    if above:
        sentence += f"; above its grant: {above[0].reason}: {above[0].message}"
        return WhyAnswer(facts.name, Stage.RUNNING, sentence, f"gpunode/{(facts.pod['spec'])['nodeName']}, findings")
    for wait in waits_of(facts.name, [facts.node] if facts.node else []):
        who = holders_in(wait.places, str(facts.pod["metadata"]["namespace"]))
        hint = "it goes on by itself once a place is free; Ctrl-C, or the end of its process, gives up"
        where = f"gpunode/{facts.pod['spec']['nodeName']}, places"
        return WhyAnswer(facts.name, Stage.PLACE, f"it runs, and {wait.sentence}{who}", where, hint)
    bad = (EventReason.DUPLICATE_ALLOCATION, EventReason.ATTACH_REFUSED, EventReason.CLIENT_FAULTED)
    warnings = [event for event in _ours(facts, bad) if last_seen(event) >= _started(facts.pod)]
    if warnings:
        at = f"{source}, event {warnings[0].get('reason')}"
        return WhyAnswer(facts.name, Stage.RUNNING, f"{sentence}; {_told(warnings)}", at)
    return WhyAnswer(facts.name, Stage.RUNNING, sentence, source, held=False)


def _started(pod: Pod) -> str:
    """When the first of its present containers began; an event from before is about another one."""
    running = [(status.get("state") or {}).get("running") or {} for status in container_statuses(pod)]
    return min((str(state["startedAt"]) for state in running if state.get("startedAt")), default="")


def _ours(facts: PodFacts, reasons: Sequence[EventReason]) -> list[Object]:
    """The newest of each reason and writer, of events by parts of ours; the reasons in this order.

    Nobody else writes such events; where the policies that see to that are off, a false one hides no true one.
    """
    newest: dict[tuple[str, str], Object] = {}
    for event in sorted(facts.events, key=last_seen):
        if is_ours(event) and event.get("reason") in reasons:
            newest[str(event["reason"]), str(event.get("reportingInstance"))] = event
    order = [reason.value for reason in reasons]
    return sorted(newest.values(), key=lambda event: order.index(event["reason"]))


def _last_warnings(facts: PodFacts) -> list[Object]:
    """The newest warning of each writer, ours first: everybody with rights in the namespace may write one."""
    newest: dict[str, Object] = {}
    for event in sorted(facts.events, key=last_seen):
        if event.get("type") == "Warning":
            newest[reporter(event)] = event
    by_time = sorted(newest.values(), key=last_seen, reverse=True)
    return sorted(by_time, key=lambda event: not is_ours(event))


def _told(events: Sequence[Object]) -> str:
    """MOST_WARNINGS of them as a clause."""
    return "; ".join(f"{event.get('reason')}: {event.get('message')}" for event in events[:MOST_WARNINGS])
