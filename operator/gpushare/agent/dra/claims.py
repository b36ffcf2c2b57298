"""The claims that are prepared on this node: what the kubelet has asked for, what their containers are granted.

Guarantees: a claim is prepared only for a GPU that its share has here, within the share's bounds, and is held from then
until the kubelet unprepares it, which it does once no container of its pod runs; a restart of ours changes nothing.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpushare.agent.dra.allocation import Allocation, ClaimRefused, Part, allocation
from gpushare.agent.dra.grants import check_share, granted
from gpushare.agent.dra.specs import ClaimSpecs, PreparedClaim, PreparedPart
from gpushare.agent.dra.users import check, uses
from gpushare.agent.kubelet.holdings import ContainerName, Holdings, ShareGpu
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.grant.model import Grant
from gpushare.kube.client import API_ERRORS, NAMESPACES, RESOURCE_CLAIMS, Kube, Object

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
class ClaimUse:
    """What a container has by its claim: (share, GPU), and what it may use of it."""

    place: ShareGpu
    grant: Grant


@dataclass(frozen=True, slots=True)
class ClaimableGpu:
    """A GPU that a share has here, as it is at this moment. `share`: None where it is not known here (yet)."""

    uuid: Uuid
    share: GpuShare | None
    verdict: Readiness
    leaving: bool = False
    """Its assignment is gone: what was not prepared before will not be."""


Gpus = Callable[[str], ClaimableGpu | None]
"""By the name of the device in the ResourceSlice; None: no share has it here."""


class Claims:
    def __init__(
        self,
        kube: Kube,
        node: str,
        specs: ClaimSpecs,
        gpus: Gpus,
        pods: Callable[[], Mapping[str, Object]],
        changed: Callable[[], None],
    ) -> None:
        """`pods`: this node's, by uid. `changed` is called when a claim was prepared or is gone."""
        self._kube = kube
        self._node = node
        self._specs = specs
        self._gpus = gpus
        self._pods = pods
        self._changed = changed
        self._held: dict[tuple[ShareName, Uuid], dict[tuple[str, str], int]] = {}
        self._prepared: dict[str, PreparedClaim] = {}
        self.count = 0
        """Claims that were prepared since this agent began."""
        for claim in specs.read_all():
            self._hold(claim)

    @property
    def any(self) -> bool:
        """Whether a claim is prepared here."""
        return bool(self._prepared)

    def holdings(self) -> Holdings:
        """(share, GPU) -> a number for each part that a claim holds of it, which stays the claim's own."""
        return {place: frozenset(numbers.values()) for place, numbers in self._held.items()}

    def pods(self) -> dict[ShareGpu, frozenset[str]]:
        """namespace/name of the pods that hold them."""
        found: dict[ShareGpu, set[str]] = {}
        for (namespace, pod, _), claimed in self.containers().items():
            found.setdefault(claimed.place, set()).add(f"{namespace}/{pod}")
        return {place: frozenset(pods) for place, pods in found.items()}

    def containers(self) -> dict[ContainerName, ClaimUse]:
        """Those whose claims are prepared."""
        by_name = {(claim.namespace, claim.name): claim for claim in self._prepared.values()}
        found = {}
        for pod in self._pods().values() if by_name else ():
            namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            for use in uses(pod):
                claim = by_name.get((namespace, use.claim))
                for part in claim.parts if claim else ():
                    if use.of(use.claim, part.request):
                        found[namespace, name, use.container] = ClaimUse((part.grant.share, part.uuid), part.grant)
        return found

    async def prepare(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        """Waits a while for the GPU to be ready and for the API to show the pod. ClaimRefused: not now, with why."""
        claim = await self._read(namespace, name, uid)
        known = self._prepared.get(uid)
        if known is not None and _is_of(known, claim):
            return known
        labels = await self._labels(claim)
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while True:
            try:
                prepared = self._grant(claim, labels)
                break
            except _NotYetError as error:
                if asyncio.get_running_loop().time() + READY_POLL_SECONDS > deadline:
                    raise ClaimRefused(str(error)) from None
            await asyncio.sleep(READY_POLL_SECONDS)
        # Nothing is awaited from the decision to the writing: no tick gives the GPU away in between.
        self._specs.write(prepared)
        self._release(uid)
        self._hold(prepared)
        self.count += 1
        LOG.info("%s is prepared", claim)
        self._changed()
        return prepared

    def unprepare(self, uid: str) -> None:
        if not _UID.fullmatch(uid):
            return
        self._specs.remove(uid)
        if self._release(uid):
            LOG.info("claim %s is unprepared", uid)
            self._changed()

    async def _read(self, namespace: str, name: str, uid: str) -> Allocation:
        whole = f"ResourceClaim {namespace}/{name}"
        if not _UID.fullmatch(uid):
            raise ClaimRefused(f"{whole} has the uid {uid!r}, which is none")
        try:
            return allocation(await self._kube.get(RESOURCE_CLAIMS, name, namespace), uid, self._node)
        except API_ERRORS as error:
            raise ClaimRefused(f"{whole} cannot be read: {error}") from error

    async def _labels(self, claim: Allocation) -> dict[str, str]:
        """Of the claim's namespace."""
        try:
            namespace = await self._kube.get(NAMESPACES, claim.namespace)
        except API_ERRORS as error:
            raise ClaimRefused(f"{claim}: namespace {claim.namespace} cannot be read: {error}") from error
        return dict(namespace["metadata"].get("labels") or {})

    def _grant(self, claim: Allocation, labels: dict[str, str]) -> PreparedClaim:
        pod = self._pods().get(claim.pod_uid)
        if pod is None:
            raise _NotYetError(f"{claim}: its pod is not known here yet")
        check(claim, pod, {item.name for item in self._prepared.values() if item.namespace == claim.namespace})
        if claim.for_slots and not any(use.claim == claim.name for use in uses(pod)):
            raise _NotYetError(f"{claim}: its pod's status does not name it yet")
        parts = tuple(self._part(claim, part, labels, pod) for part in claim.parts)
        return PreparedClaim(claim.uid, claim.namespace, claim.name, parts)

    def _part(self, claim: Allocation, part: Part, labels: dict[str, str], pod: Object) -> PreparedPart:
        gpu = self._gpus(part.device)
        if gpu is None or gpu.leaving:
            raise ClaimRefused(
                f"{claim} has GPU {part.device} of node {self._node}, which no GpuShare has any more: delete the pod, "
                "so that the scheduler places it again"
            )
        if gpu.share is None:
            raise _NotYetError(f"{claim}: the GpuShare of GPU {gpu.uuid} is not known here yet")
        check_share(claim, gpu.share, labels)
        grant = granted(claim, part, gpu.share, pod)
        if not gpu.verdict.takes_clients:
            raise _NotYetError(f"{claim}: GPU {gpu.uuid}: {gpu.verdict.reason.value}: {gpu.verdict.message}")
        memory = gpu.share.status.gpu_memory_mib or None
        return PreparedPart(gpu.uuid, part.request, self._node, part.device, part.share_id, grant, memory)

    def _hold(self, claim: PreparedClaim) -> None:
        self._prepared[claim.uid] = claim
        for part in claim.parts:
            numbers = self._held.setdefault((part.grant.share, part.uuid), {})
            numbers.setdefault((claim.uid, part.request), _lowest_free(numbers.values()))

    def _release(self, uid: str) -> bool:
        known = self._prepared.pop(uid, None)
        for numbers in self._held.values():
            for key in [key for key in numbers if key[0] == uid]:
                del numbers[key]
        self._held = {place: numbers for place, numbers in self._held.items() if numbers}
        return known is not None


class _NotYetError(Exception):
    """May be had in a moment; the sentence says what is waited for."""


def _is_of(known: PreparedClaim, claim: Allocation) -> bool:
    """Whether it was prepared from this very allocation."""
    before = [(part.request, part.device, part.share_id) for part in known.parts]
    return before == [(part.request, part.device, part.share_id) for part in claim.parts]


def _lowest_free(taken: Iterable[int]) -> int:
    numbers = set(taken)
    return next(number for number in range(len(numbers) + 1) if number not in numbers)
