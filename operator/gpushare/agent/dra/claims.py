"""Prepares and unprepares claims, as the kubelet asks for it.

Guarantees: a claim is prepared only for a GPU that its share has here, within the share's bounds, and for a pod with
all its containers as the API server has it now: the agent's own copy may lack some. The claim then holds its part until
the kubelet unprepares it, which it does once no container of the claim's pod runs. Restarting the agent changes nothing
about that.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpushare.agent.dra.allocation import Allocation, ClaimRefused, Part, allocation
from gpushare.agent.dra.grants import check_share, granted
from gpushare.agent.dra.prepared import PreparedClaim, PreparedClaims, PreparedPart
from gpushare.agent.dra.users import check, uses
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api import names
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import API_ERRORS, NAMESPACES, PODS, RESOURCE_CLAIMS, Kube, Object

LOG = logging.getLogger(__name__)

READY_SECONDS = 20.0
"""How long a pod's start may wait here for its GPU; the kubelet gives up after 45 s, and tries again."""
READY_POLL_SECONDS = 0.5
WITHOUT_CDI = Readiness(
    DaemonReason.DAEMON_FAILED,
    "containers get their GPU without CDI on this node (chart value cdi), and claims need CDI",
)
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class ClaimSources:
    """What claims are prepared from, each as it is when it is asked for.

    `decisions`: by GPU. `by_cdi`: whether containers get their GPU by CDI. `used`: (namespace, name) of each claim that
    a pod of this node uses; None: not known now. `changed`: called when a claim was prepared or is gone, or the
    ResourceSlice has changed.
    """

    node: str
    claims: PreparedClaims
    decisions: Callable[[], Mapping[Uuid, GpuDecision]]
    by_cdi: Callable[[], bool]
    used: Callable[[], set[tuple[str, str]] | None]
    changed: Callable[[], None]


class ClaimPreparer:
    def __init__(
        self,
        kube: Kube,
        sources: ClaimSources,
        ready_seconds: float = READY_SECONDS,
        ready_poll_seconds: float = READY_POLL_SECONDS,
    ) -> None:
        self._kube = kube
        self._sources = sources
        self._ready_seconds = ready_seconds
        self._ready_poll_seconds = ready_poll_seconds

    async def prepare(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        """Waits a while for the GPU to be ready and for the API server to show the pod. ClaimRefused: not now."""
        claim = await self._read(namespace, name, uid)
        known = self._sources.claims.get(uid)
        if known is not None and _is_of(known, claim):
            return known
        labels = await self._labels(claim)
        deadline = asyncio.get_running_loop().time() + self._ready_seconds
        while True:
            try:
                prepared = self._grant(claim, labels, await self._pod(claim))
                break
            except _NotYetError as error:
                if asyncio.get_running_loop().time() + self._ready_poll_seconds > deadline:
                    raise ClaimRefused(str(error)) from None
            await asyncio.sleep(self._ready_poll_seconds)
        # No await between decision and writing: no tick gives the GPU away in between.
        self._sources.claims.add(prepared)
        LOG.info("%s is prepared", claim)
        self._sources.changed()
        return prepared

    def unprepare(self, uid: str) -> None:
        if _UID.fullmatch(uid) and self._sources.claims.remove(uid):
            LOG.info("claim %s is unprepared", uid)
            self._sources.changed()

    async def _read(self, namespace: str, name: str, uid: str) -> Allocation:
        whole = f"ResourceClaim {namespace}/{name}"
        if not _UID.fullmatch(uid):
            raise ClaimRefused(f"{whole} has the uid {uid!r}, which is none")
        try:
            return allocation(await self._kube.get(RESOURCE_CLAIMS, name, namespace), uid, self._sources.node)
        except API_ERRORS as error:
            raise ClaimRefused(f"{whole} cannot be read: {error}") from error

    async def _labels(self, claim: Allocation) -> dict[str, str]:
        """The labels of the claim's namespace."""
        try:
            namespace = await self._kube.get(NAMESPACES, claim.namespace)
        except API_ERRORS as error:
            raise ClaimRefused(f"{claim}: namespace {claim.namespace} cannot be read: {error}") from error
        return dict(namespace["metadata"].get("labels") or {})

    async def _pod(self, claim: Allocation) -> Object:
        try:
            pod = await self._kube.find(PODS, claim.pod_name, claim.namespace)
        except API_ERRORS as error:
            raise ClaimRefused(f"{claim}: its pod {claim.pod_name} cannot be read: {error}") from error
        if pod is None or pod["metadata"].get("uid") != claim.pod_uid:
            raise ClaimRefused(f"{claim}: its pod {claim.pod_name} is gone")
        return pod

    def _grant(self, claim: Allocation, labels: dict[str, str], pod: Object) -> PreparedClaim:
        check(claim, pod, self._sources.claims.names_in(claim.namespace))
        if claim.for_slots and not any(use.claim == claim.name for use in uses(pod)):
            raise _NotYetError(f"{claim}: its pod's status does not name it yet")
        parts = tuple(self._part(claim, part, labels, pod) for part in claim.parts)
        return PreparedClaim(claim.uid, claim.namespace, claim.name, parts, claim.pod_uid)

    def _part(self, claim: Allocation, part: Part, labels: dict[str, str], pod: Object) -> PreparedPart:
        gpu = self._gpu(part.device)
        if gpu is None or gpu.is_leaving:
            raise ClaimRefused(
                f"{claim} has GPU {part.device} of node {self._sources.node}, which no GpuShare has any more: "
                "delete the pod, so that the scheduler places it again"
            )
        if gpu.share is None:
            raise _NotYetError(f"{claim}: the GpuShare of GPU {gpu.plan.uuid} is not known here yet")
        check_share(claim, gpu.share, labels)
        grant = granted(claim, part, gpu.share, pod)
        uuid, readiness = gpu.plan.uuid, gpu.readiness if self._sources.by_cdi() else WITHOUT_CDI
        if not readiness.takes_clients:
            raise _NotYetError(f"{claim}: GPU {uuid}: {readiness.reason.value}: {readiness.message}")
        memory = gpu.share.status.gpu_memory_mib or None
        return PreparedPart(uuid, part.request, self._sources.node, part.device, part.share_id, grant, memory)

    def _gpu(self, device: str) -> GpuDecision | None:
        """The GPU of that name in the ResourceSlice, if a share has it here."""
        decisions = self._sources.decisions().values()
        shared = (gpu for gpu in decisions if gpu.files is not None)
        return next((gpu for gpu in shared if names.device_name(gpu.plan.uuid) == device), None)


class _NotYetError(Exception):
    """Worth another try in a moment; the text says what is missing."""


def _is_of(known: PreparedClaim, claim: Allocation) -> bool:
    """Whether it was prepared from this allocation, for this pod."""
    before = [(part.request, part.device, part.share_id) for part in known.parts]
    same = before == [(part.request, part.device, part.share_id) for part in claim.parts]
    return same and known.pod_uid in ("", claim.pod_uid)
