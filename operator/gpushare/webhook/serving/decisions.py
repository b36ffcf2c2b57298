"""The decisions of each endpoint: gathers the data of a review, once it is known to be small enough, and decides.

The rules are in pods, claims and shares.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

from gpushare.webhook.bounds import claim_too_large, pod_too_large, too_many_shares
from gpushare.webhook.claims import admit_claim, check_claim, claim_spec, shares_claimed, shares_of
from gpushare.webhook.pods import admit_pod, check_pod, delete_pod, mirrors, shares_asked_for
from gpushare.webhook.review import AdmissionData, Admitted, Answer, listed, mapped
from gpushare.webhook.shares import delete_share, validate_share
from gpushare.webhook.sources import Sources
from gpushare.webhook.warnings import pod_of, warn_owner

Decide = Callable[[dict[str, Any]], Awaitable[Answer]]
"""A function from a review's request to the answer."""
_DEPARTURES, _OWNERS = "validate-departures", "validate-owners"
NEVER_REFUSE = (_DEPARTURES, _OWNERS)
"""Endpoints that only warn: what is too large to be read is admitted."""
Rules = Callable[[dict[str, Any], AdmissionData], Answer]
"""A function from the object and its data to the answer."""


class Reviews:
    """Operations that no rule is about are admitted."""

    def __init__(self, sources: Sources, own_namespace: str, tolerated: tuple[str, ...] = ()) -> None:
        self._sources = sources
        self._own_namespace = own_namespace
        self._tolerated = tolerated

    def all(self) -> Iterator[tuple[str, Decide]]:
        """(name of the endpoint, its decision)"""
        yield "mutate-pods", lambda request: self._pod(request, admit_pod)
        yield "validate-pods", lambda request: self._pod(request, check_pod)
        yield "mutate-claims", lambda request: self._claim(request, admit_claim)
        yield "validate-claims", lambda request: self._claim(request, check_claim)
        yield "validate-gpushares", self._share
        yield _DEPARTURES, self._departure
        yield _OWNERS, self._owner

    async def _share(self, request: dict[str, Any]) -> Answer:
        if request["operation"] not in ("CREATE", "UPDATE"):
            return Admitted()
        return validate_share(request["object"], request.get("oldObject"))

    async def _pod(self, request: dict[str, Any], rules: Rules) -> Answer:
        pod = request["object"]
        if request["operation"] != "CREATE" or mirrors(pod):
            return Admitted()
        return await self._judged(request, pod, rules)

    async def _owner(self, request: dict[str, Any]) -> Answer:
        """The review of whatever makes pods from a template; never refused."""
        if request["operation"] not in ("CREATE", "UPDATE"):
            return Admitted()
        answer = await self._judged(request, pod_of(request["object"]), admit_pod)
        return warn_owner(request["kind"]["kind"], answer)

    async def _judged(self, request: dict[str, Any], pod: dict[str, Any], rules: Rules) -> Answer:
        if refused := pod_too_large(pod):
            return refused
        shares = shares_asked_for(pod)
        if refused := too_many_shares(shares):
            return refused
        entries = listed(mapped(pod, "spec"), "resourceClaims")
        claims = await self._sources.claims(request.get("namespace") or "", entries) if entries else {}
        for claim in claims.values():
            shares |= shares_of(claim)
        if refused := too_many_shares(shares):
            return refused
        return rules(pod, replace(await self._data(request, shares), claims=claims))

    async def _claim(self, request: dict[str, Any], rules: Rules) -> Answer:
        claim = request["object"]
        if request["operation"] != "CREATE":
            return Admitted()
        if refused := claim_too_large(claim_spec(claim)):
            return refused
        shares = shares_claimed(claim)
        if refused := too_many_shares(shares):
            return refused
        return rules(claim, await self._data(request, shares))

    async def _departure(self, request: dict[str, Any]) -> Answer:
        """The review of the deletion of a pod or a GpuShare; never refused."""
        old = request.get("oldObject")
        if request["operation"] != "DELETE" or not isinstance(old, dict):
            return Admitted()
        if request["kind"]["kind"] == "GpuShare":
            return delete_share(old)
        silence = await self._sources.silence(mapped(old, "spec").get("nodeName") or "")
        if not silence or pod_too_large(old):
            return Admitted()
        entries = listed(mapped(old, "spec"), "resourceClaims")
        claims = await self._sources.claims(request.get("namespace") or "", entries) if entries else {}
        return delete_pod(old, claims, silence)

    async def _data(self, request: dict[str, Any], shares: set[str]) -> AdmissionData:
        namespace = request.get("namespace") or ""
        return AdmissionData(
            namespace=namespace,
            namespace_labels=await self._sources.namespace_labels(namespace),
            shares=await self._sources.shares(shares),
            share_names=self._sources.share_names(),
            own_namespace=self._own_namespace,
            tolerated=self._tolerated,
        )
