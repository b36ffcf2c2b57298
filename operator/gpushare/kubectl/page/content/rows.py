"""Objects of the API server as rows of the page. Pure.

Keys: share/NAME, node/NAME, gpu/UUID, pod/NAMESPACE/NAME, event/NUMBER, note/WHAT. Memory is in MiB, moments are of
RFC 3339.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpushare.api.gpunode import DaemonStatus, Gpu, GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.kube.pods import full_name
from gpushare.kube.resources import Object
from gpushare.kubectl.page.content.feed import Row
from gpushare.kubectl.views.events import count, last_seen, message_of, object_of
from gpushare.kubectl.views.objects import created, gpu_state, ready_condition
from gpushare.kubectl.views.places import queue_of
from gpushare.kubectl.views.pods.pod import PodFacts, asked_shares, claim_shares, gpus, grants, own_claims
from gpushare.kubectl.views.pods.why import why
from gpushare.kubectl.views.status import node_problems
from gpushare.planner.turns import in_turns

EVENTS_OF_A_POD = 50
"""The newest."""


def share_rows(share: GpuShare) -> dict[str, Row]:
    state, ready = share.status, ready_condition(share)
    return {
        f"share/{share.name}": {
            "name": share.name,
            "ready": ready.status if ready else "Unknown",
            "reason": ready.reason if ready else "",
            "message": ready.message if ready else "",
            "gpus": state.summary or "0/0",
            "held": state.slots.used,
            "slots": state.slots.total,
            "perGpu": share.slots_per_gpu,
            "places": queue_of(share),
            "threads": state.threads,
            "memory": state.memory,
            "memoryMib": share.memory_default_mib,
            "lends": _lends(share),
            "delivery": share.spec.delivery.value,
            "enforcement": share.spec.enforcement.value,
            "deleting": share.deleting,
            "unavailable": [
                {"reason": item.reason, "count": item.count, "message": item.message} for item in state.unavailable
            ],
            "unplaced": [
                {"claim": item.claim, "message": item.message}
                for item in (state.claims.unplaced if state.claims else ())
            ],
        }
    }


def _lends(share: GpuShare) -> str:
    """How far its clients may borrow memory; empty: not at all."""
    limits = share.limits_memory
    return f"up to {limits.max} each; when a GPU is short: {limits.when_short.value}" if limits else ""


def node_rows(node: GpuNode) -> dict[str, Row]:
    """The rows of the node, and of each of its GPUs."""
    state = node.status
    daemons = {daemon.uuid: daemon for daemon in state.daemons}
    rows: dict[str, Row] = {
        f"node/{node.name}": {
            "name": node.name,
            "simulated": state.simulated,
            "driver": state.driver_version,
            "agent": state.agent_version,
            "silence": node.silence,
            "problems": [
                {"uuid": uuid, "reason": reason, "message": message} for uuid, reason, message in node_problems(node)
            ],
            "findings": [
                {"uuid": item.uuid, "reason": item.reason, "namespace": item.namespace, "pod": item.pod,
                 "container": item.container, "message": item.message, "since": item.since}
                for item in state.findings
            ],
            "borrowers": [
                {"uuid": item.uuid, "namespace": item.namespace, "pod": item.pod, "container": item.container,
                 "reserved": item.reserved_mib, "limit": item.limit_mib, "endsAt": item.ends_at or ""}
                for item in state.borrowers
            ],
            "unused": [
                {"uuid": item.uuid, "namespace": item.namespace, "pod": item.pod, "container": item.container,
                 "since": item.unused_since}
                for item in state.unused
            ],
        }
    }  # fmt: skip
    for gpu in state.gpus:
        rows[f"gpu/{gpu.uuid}"] = _gpu(node, gpu, daemons.get(gpu.uuid))
    return rows


def _gpu(node: GpuNode, gpu: Gpu, daemon: DaemonStatus | None) -> Row:
    assigned = next((item for item in node.spec.assignments or () if item.uuid == gpu.uuid), None)
    share = daemon.share if daemon else assigned.share if assigned else ""
    holders = [item for item in node.status.holders if item.uuid == gpu.uuid]
    queued = [item for item in node.status.places if item.uuid == gpu.uuid]
    return {
        "uuid": gpu.uuid,
        "node": node.name,
        "index": gpu.index,
        "product": gpu.product,
        "simulated": node.status.simulated,
        "memoryMib": gpu.memory_mib,
        "share": share,
        "state": gpu_state(gpu, daemon, node),
        "ready": daemon is not None and daemon.ready and not node.silence and not gpu.lost,
        "message": node.silence or (daemon.message if daemon else ""),
        "leaving": assigned is not None and assigned.draining,
        "paused": assigned is not None and assigned.paused,
        "held": sum(len(item.slots) for item in holders),
        "places": next((f"{item.used} of {item.limit}" for item in queued), ""),
        "waiting": [client for item in queued for client in item.queue],
        "pods": [pod for item in holders for pod in item.pods],
        "foreign": len(gpu.foreign_processes),
    }


def pending_row(facts: PodFacts) -> Row:
    """The row of a pod that does not run: what `why` says of it."""
    answer = why(facts)
    namespace, _, name = facts.name.partition("/")
    return {
        "namespace": namespace,
        "name": name,
        "shares": list(dict.fromkeys([*asked_shares(facts), *claim_shares(own_claims(facts))])),
        "stage": answer.stage.value,
        "sentence": answer.sentence,
        "hint": answer.hint,
        "since": created(facts.pod) or "",
    }


def pod_detail(facts: PodFacts) -> dict[str, Any]:
    """Everything about one pod, for the page's pane."""
    events = sorted(facts.events, key=last_seen, reverse=True)[:EVENTS_OF_A_POD]
    return dict(pending_row(facts)) | {
        "node": str((facts.pod.get("spec") or {}).get("nodeName") or ""),
        "phase": str((facts.pod.get("status") or {}).get("phase") or ""),
        "grants": [{"of": of, "amounts": amounts} for of, amounts in grants(facts)],
        "gpus": [
            {"uuid": item.uuid, "node": item.node, "share": item.share, "neighbours": list(item.neighbours)}
            for item in gpus(facts)
        ],
        "events": [event_row(item) for item in events],
    }


def event_row(event: Object) -> Row:
    about = event.get("involvedObject") or {}
    return {
        "at": last_seen(event),
        "type": str(event.get("type") or ""),
        "reason": str(event.get("reason") or ""),
        "namespace": str(about.get("namespace") or ""),
        "object": object_of(event),
        "count": count(event),
        "message": message_of(event),
    }


def event_rows(events: Iterable[Object], most: int) -> dict[str, Row]:
    """The rows of so many events: the newest of each namespace, in turns."""
    newest = sorted(events, key=last_seen, reverse=True)
    shown = in_turns(newest, lambda event: str(event["metadata"].get("namespace") or ""))[:most]
    return {
        f"event/{event['metadata'].get('uid') or event['metadata'].get('name')}": event_row(event) for event in shown
    }


def pending_rows(
    pods: Iterable[Object],
    shares: Mapping[str, GpuShare],
    nodes: Mapping[str, GpuNode],
    claims: Mapping[str, Sequence[Object]],
    most: int,
) -> dict[str, Row]:
    """The rows of so many pods that wait: the oldest of each namespace, in turns. `claims`: by namespace."""
    rows: dict[str, Row] = {}
    oldest = sorted(pods, key=lambda pending: (created(pending) or "", full_name(pending)))
    for pod in in_turns(oldest, lambda pending: str(pending["metadata"]["namespace"]))[:most]:
        namespace, node = pod["metadata"]["namespace"], nodes.get(str((pod.get("spec") or {}).get("nodeName")))
        facts = PodFacts(pod, (), shares, [node] if node else [], claims.get(namespace, ()))
        rows[f"pod/{facts.name}"] = pending_row(facts)
    return rows
