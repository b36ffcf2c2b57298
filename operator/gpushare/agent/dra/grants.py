"""The grant of a container, from the part of a GPU that its claim was allocated. Pure."""

from dataclasses import replace

from gpushare.agent.dra.allocation import Allocation, ClaimRefused, Part
from gpushare.agent.dra.users import users
from gpushare.api.gpushare import GpuShare
from gpushare.api.quantity import format_mib
from gpushare.grant.classes import granted_class
from gpushare.grant.environment import grant_from_environment
from gpushare.grant.model import Grant, default_grant
from gpushare.grant.refused import GrantRefused
from gpushare.kube.client import Object
from gpushare.kube.pods import containers, environment


def granted(claim: Allocation, part: Part, share: GpuShare, pod: Object) -> Grant:
    """The grant for `part`. A slot's annotations, which the webhook made variables of, may lower it. The pod's
    annotations count for its class. ClaimRefused.
    """
    clients = share.clients
    if part.threads > clients.threads.max:
        raise ClaimRefused(_above(claim, share, f"{part.threads} percent of threads", f"{clients.threads.max} percent"))
    if part.memory_mib > share.memory_max_mib:
        bound = format_mib(share.memory_max_mib)
        raise ClaimRefused(_above(claim, share, f"{format_mib(part.memory_mib)} of memory", bound))
    limit_mib = part.memory_mib + part.burst_mib
    if part.burst_mib and limit_mib > share.memory_limit_max_mib:
        bound = format_mib(share.memory_limit_max_mib)
        what = f"{format_mib(limit_mib)} of memory, {format_mib(part.burst_mib)} of it to borrow"
        raise ClaimRefused(_above(claim, share, what, bound))
    try:
        its_class = granted_class(share, pod["metadata"].get("annotations") or {}, claim.namespace, part.size)
    except GrantRefused as refused:
        raise ClaimRefused(f"{claim}: pod {claim.pod_name}: {refused}") from None
    grant = replace(
        default_grant(share),
        threads=part.threads,
        memory_mib=part.memory_mib,
        burst_mib=part.burst_mib,
        client_class=its_class.client_class,
        threads_beside_protected=its_class.threads_beside_protected,
    )
    if not claim.for_slots:
        return grant
    using = users(pod, claim.name, part.request)
    for container in (item for item in containers(pod) if item["name"] in using):
        asked = grant_from_environment(environment(container))
        if asked is not None and asked.share == share.name:
            threads, memory_mib = min(asked.threads, grant.threads), min(asked.memory_mib, grant.memory_mib)
            grant = replace(grant, threads=threads, memory_mib=memory_mib)
    return grant


def check_share(claim: Allocation, share: GpuShare, namespace_labels: dict[str, str]) -> None:
    """Refuses a claim that this share may not serve. ClaimRefused."""
    if not share.by_claims:
        raise ClaimRefused(
            f'{claim} has a GPU of GpuShare "{share.name}", which is delivered by DevicePlugin: delete the pod, so '
            "that the scheduler places it again"
        )
    if not share.spec.allowed_namespaces.matches(namespace_labels):
        raise ClaimRefused(
            f'{claim}: GpuShare "{share.name}" does not allow namespace {claim.namespace} (spec.allowedNamespaces)'
        )


def _above(claim: Allocation, share: GpuShare, what: str, bound: str) -> str:
    return (
        f'{claim} was allocated {what}, and GpuShare "{share.name}" allows {bound} now: claim less, or have the '
        "share's max raised"
    )
