"""What is known of one pod and of what it asks for. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpushare.api import names
from gpushare.api.gpunode import DaemonStatus, Finding, GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.api.quantity import format_mib
from gpushare.grant.environment import grant_from_environment
from gpushare.grant.model import Grant
from gpushare.kube.claims import allocation_results, requested_classes
from gpushare.kube.pods import Container, Pod, containers, environment, full_name, limits
from gpushare.kube.resources import Object
from gpushare.messages.wording import count_of


@dataclass(frozen=True, slots=True)
class PodFacts:
    """`events`: of the pod; `claims`, `workloads`: the ResourceClaims and Kueue's Workloads of its namespace; `nodes`
    and `workloads`: empty where they cannot be read. `placed`: the pods of all namespaces that have a node and have not
    ended; None where they are not known."""

    pod: Pod
    events: Sequence[Object] = ()
    shares: Mapping[str, GpuShare] = field(default_factory=dict)
    nodes: Sequence[GpuNode] = ()
    claims: Sequence[Object] = ()
    workloads: Sequence[Object] = ()
    placed: Sequence[Pod] | None = None
    beside: Sequence[Pod] = ()
    """The pods of its namespace, itself included."""
    tainted: Sequence[Object] = ()
    """The Nodes; empty where they cannot be read."""

    @property
    def name(self) -> str:
        return full_name(self.pod)

    @property
    def node(self) -> GpuNode | None:
        """The GpuNode of the pod's node."""
        wanted = (self.pod.get("spec") or {}).get("nodeName")
        return next((node for node in self.nodes if node.name == wanted), None)


@dataclass(frozen=True, slots=True)
class PodGpu:
    """A GPU of which the pod has a part. `neighbours`: other pods there, of those that the GpuNode lists."""

    node: str
    uuid: str
    product: str
    share: str
    daemon: DaemonStatus | None
    neighbours: Sequence[str]


def asked_shares(facts: PodFacts) -> list[str]:
    """The shares of which its containers ask for slots or whole GPUs, once each."""
    resources = (resource for container in containers(facts.pod) for resource in limits(container))
    return list(dict.fromkeys(share for resource in resources for share in _shares_of(resource, facts)))


def _shares_of(resource: str, facts: PodFacts) -> list[str]:
    """Several shares may give whole GPUs under one name, each on nodes of its own."""
    share = names.share_of_resource(resource)
    return (
        [share]
        if share is not None
        else [share_model.name for share_model in facts.shares.values() if share_model.resource == resource]
    )


def held_by_pods(facts: PodFacts, share: GpuShare) -> int | None:
    """The slots or whole GPUs of the share that pods hold, as the scheduler counts them; None where that is not known.

    The resource of a slot is one share's alone; that of a whole GPU is it on the nodes where the share has GPUs.
    """
    nodes = {node.name for node in facts.nodes if any(daemon.share == share.name for daemon in node.status.daemons)}
    if facts.placed is None or (share.whole and not nodes):
        return None
    return sum(
        _asked_of(pod, share.resource)
        for pod in facts.placed
        if not share.whole or (pod.get("spec") or {}).get("nodeName") in nodes
    )


def _asked_of(pod: Pod, resource: str) -> int:
    """How many of a resource the scheduler sets aside: init containers run before the others, sidecars beside all."""
    spec = pod.get("spec") or {}
    sidecars = most = 0
    for container in spec.get("initContainers") or ():
        amount = _amount(container, resource)
        most = max(most, sidecars + amount)
        sidecars += amount if container.get("restartPolicy") == "Always" else 0
    return max(most, sidecars + sum(_amount(container, resource) for container in spec.get("containers") or ()))


def _amount(container: Container, resource: str) -> int:
    written = str(limits(container).get(resource, 0))
    return int(written) if written.isdecimal() else 1


def own_claims(facts: PodFacts) -> list[Object]:
    """The pod's claims for our devices."""
    status = {
        item["name"]: item.get("resourceClaimName") for item in _listed(facts.pod, "status", "resourceClaimStatuses")
    }
    wanted = {
        item.get("resourceClaimName") or status.get(item["name"])
        for item in _listed(facts.pod, "spec", "resourceClaims")
    }
    return [
        claim
        for claim in facts.claims
        if claim["metadata"]["name"] in wanted and any(map(names.parse_device_class, requested_classes(claim)))
    ]


def unmade_claims(facts: PodFacts) -> list[str]:
    """The ResourceClaimTemplates of which the pod has no claim yet."""
    made = {item["name"] for item in _listed(facts.pod, "status", "resourceClaimStatuses")}
    return [
        str(item["resourceClaimTemplateName"])
        for item in _listed(facts.pod, "spec", "resourceClaims")
        if item.get("resourceClaimTemplateName") and item["name"] not in made
    ]


def claim_shares(claims: Sequence[Object]) -> list[str]:
    parsed = (names.parse_device_class(class_name) for claim in claims for class_name in requested_classes(claim))
    return list(dict.fromkeys(parts[0] for parts in parsed if parts))


def gpus(facts: PodFacts) -> list[PodGpu]:
    """The GPUs as the GpuNodes show them; none where the pod holds nothing, or is not among the pods that are
    listed."""
    allocated = {result.get("device") for claim in own_claims(facts) for result in allocation_results(claim)}
    held = []
    for node in [facts.node] if facts.node else []:
        daemons = {daemon.uuid: daemon for daemon in node.status.daemons}
        products = {gpu.uuid: gpu.product for gpu in node.status.gpus}
        for holder in node.status.holders:
            if facts.name in holder.pods or names.device_name(holder.uuid) in allocated:
                others = [pod for pod in holder.pods if pod != facts.name]
                held.append(
                    PodGpu(
                        node.name,
                        holder.uuid,
                        products.get(holder.uuid, ""),
                        holder.share,
                        daemons.get(holder.uuid),
                        others,
                    )
                )
    return held


def _class(grant: Grant) -> str:
    if grant.client_class is None:
        return ""
    beside = grant.threads_beside_protected
    return f", {grant.client_class}" + (f" ({beside}% of the SMs beside protected clients)" if beside else "")


def grants(facts: PodFacts) -> Iterator[tuple[str, str]]:
    """(container, what it may use)."""
    for container in containers(facts.pod):
        asked = [
            (asked_for, amount, shares[0])
            for asked_for, amount in limits(container).items()
            if (shares := _shares_of(asked_for, facts))
        ]
        if not asked:
            continue
        resource, amount, share = asked[0]
        if (known := facts.shares.get(share)) is not None and known.whole:
            yield str(container["name"]), f"{count_of(int(amount), 'whole GPU')}, as {resource}"
            continue
        grant = grant_from_environment(environment(container))
        if grant is None:
            yield (
                str(container["name"]),
                f"a slot of share {share}, with its defaults: the pod never passed the webhook",
            )
            continue
        processes = count_of(grant.processes, "process")
        most = f" ({format_mib(grant.limit_mib)} at most)" if grant.burst_mib else ""
        yield (
            str(container["name"]),
            f"{grant.threads}% of the SMs, {format_mib(grant.memory_mib)}{most}, {processes} of share {grant.share}"
            f"{_class(grant)}",
        )
    for claim in own_claims(facts):
        for result in allocation_results(claim):
            amounts = result.get("consumedCapacity") or {}
            yield f"claim {claim['metadata']['name']}", ", ".join(f"{key} {amount}" for key, amount in amounts.items())


def findings(facts: PodFacts) -> list[Finding]:
    uid = facts.pod["metadata"]["uid"]
    return [finding for node in facts.nodes for finding in node.status.findings if finding.pod_uid == uid]


def _listed(pod: Pod, part: str, key: str) -> Sequence[Any]:
    return (pod.get(part) or {}).get(key) or ()
