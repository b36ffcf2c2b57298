"""Prepared claims that no kubelet will ever unprepare, because it has lost its own record of them.

That happens where a kubelet's directory is removed under it, as by `kubeadm reset`. Such a claim would hold its part of
a GPU for ever.

Guarantees: one is given up only while the API server says that there is no such claim, no pod of this node uses one of
its name, the kubelet answers, and all that has been so for GONE_SECONDS: a kubelet that still has to end the containers
of a pod that was deleted by force does so within seconds.
"""

import logging
from collections.abc import Callable

from gpushare.agent.dra.prepared import PreparedClaim, PreparedClaims
from gpushare.kube.client import API_ERRORS, RESOURCE_CLAIMS, Kube

LOG = logging.getLogger(__name__)

GONE_SECONDS = 30.0


class GoneClaims:
    def __init__(
        self,
        kube: Kube,
        claims: PreparedClaims,
        used: Callable[[], set[tuple[str, str]] | None],
        unprepare: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """`used`: (namespace, name) of every claim that a pod of this node uses; None: not known now. `unprepare`: as
        the kubelet would ask for it, by uid. `clock`: seconds, monotonic.
        """
        self._kube = kube
        self._claims = claims
        self._used = used
        self._unprepare = unprepare
        self._clock = clock
        self._since: dict[str, float] = {}

    async def give_up(self) -> None:
        """Call it every few seconds. Asks the API server only about claims that no pod uses. OSError: try again."""
        used = self._used()
        known = self._claims.all()
        unused = [claim for claim in known if used is not None and (claim.namespace, claim.name) not in used]
        gone = [claim for claim in unused if await self._is_gone(claim)]
        now = self._clock()
        self._since = {claim.uid: self._since.get(claim.uid, now) for claim in gone}
        for claim in gone:
            if now - self._since[claim.uid] >= GONE_SECONDS:
                LOG.warning(
                    "ResourceClaim %s/%s (%s) is gone and no pod of this node uses it, but the kubelet has not"
                    " unprepared it: its part of a GPU is given up",
                    claim.namespace,
                    claim.name,
                    claim.uid,
                )
                self._unprepare(claim.uid)

    async def _is_gone(self, claim: PreparedClaim) -> bool:
        """Whether the API server has no such claim, or another one of its name."""
        try:
            present = await self._kube.find(RESOURCE_CLAIMS, claim.name, claim.namespace)
        except API_ERRORS:
            return False
        return present is None or present["metadata"].get("uid") != claim.uid
