"""The page's threads: one for each kind that is followed, one that judges, one that asks agents for their figures."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpushare.kube.resources import (
    CORE_EVENTS,
    GPU_NODES,
    GPU_SHARES,
    PODS,
    RESOURCE_CLAIMS,
    KubeError,
    Object,
    Resource,
)
from gpushare.kubectl.api import ApiReader
from gpushare.kubectl.commands.top import AGENTS
from gpushare.kubectl.failures import UnreachableError
from gpushare.kubectl.kept import kept_claim, kept_event
from gpushare.kubectl.page.cluster.fleet_view import FleetView
from gpushare.kubectl.page.cluster.operator_lease import OperatorLease
from gpushare.kubectl.page.cluster.scrapes import AgentPod, Scraper
from gpushare.kubectl.page.cluster.watch import Followed, KindWatch
from gpushare.kubectl.page.content.feed import Feed
from gpushare.kubectl.page.content.rows import pod_detail
from gpushare.kubectl.views.pods.pod import PodFacts

EVENT_SELECTORS = (
    "reportingComponent=gpushare-agent",
    "reportingComponent=gpushare-operator",
    "reason=FailedCreate",  # where a controller says that our webhook refuses its pods
)
"""So that the API server sends none of the many other events of a cluster."""


LOOKUPS = 4
"""Pods that browsers may ask for at a time; each takes some requests to the API server."""
MOST_ITEMS = 500
"""Events of a pod, and claims of its namespace, that are looked at."""


@dataclass(frozen=True, slots=True)
class FollowedCluster:
    """What is served: `feed`, who looks, and one pod in full."""

    feed: Feed
    looking: Callable[[list[str]], None]
    pod: Callable[[str, str], dict[str, Any] | None]


@contextmanager
def following(
    api: ApiReader, system_namespace: str, namespace: str | None, ask: Callable[[AgentPod], str]
) -> Iterator[FollowedCluster]:
    """`namespace`: whose pods and events are shown; None: all. `ask`: the metrics of an agent."""
    feed, stop = Feed(), threading.Event()
    view = FleetView(feed)
    scraper = Scraper(feed, ask, view.note, time.monotonic, time.time)
    kinds = [
        ("shares", Followed(GPU_SHARES, view.put_share, view.remove_share)),
        ("GPUs", Followed(GPU_NODES, view.put_node, view.remove_node)),
        ("waiting pods", Followed(
            PODS, view.put_pod, view.remove_pod, namespace, {"fieldSelector": "status.phase=Pending"}
        )),
        ("claims", Followed(RESOURCE_CLAIMS, view.put_claim, view.remove_claim, namespace, optional=True)),
        ("figures of agents", Followed(
            PODS, scraper.put_agent, scraper.remove_agent, system_namespace, {"labelSelector": AGENTS}
        )),
        *(
            (f"events ({selector})", Followed(
                CORE_EVENTS, view.put_event, view.remove_event, namespace, {"fieldSelector": selector}
            ))
            for selector in EVENT_SELECTORS
        ),
    ]  # fmt: skip
    lease = OperatorLease(api, system_namespace, view.noting("operator"))
    runs: list[Callable[[threading.Event], None]] = [view.run, scraper.run, lease.run]
    runs += [KindWatch(api, followed, view.noting(what)).run for what, followed in kinds]
    for run in runs:
        threading.Thread(target=run, args=(stop,), daemon=True).start()
    try:
        yield FollowedCluster(feed, scraper.looking, partial(_bounded, threading.BoundedSemaphore(LOOKUPS), api, view))
    finally:
        stop.set()


def _bounded(
    room: threading.BoundedSemaphore, api: ApiReader, view: FleetView, namespace: str, name: str
) -> dict[str, Any] | None:
    if not room.acquire(blocking=False):
        raise UnreachableError("too many pods are being asked for: wait a moment")
    try:
        return _pod(api, view, namespace, name)
    finally:
        room.release()


def _pod(api: ApiReader, view: FleetView, namespace: str, name: str) -> dict[str, Any] | None:
    try:
        pod = api.read(PODS.path(namespace, name))
    except KubeError as error:
        if error.not_found:
            return None
        raise
    shares, nodes = view.shares_and_node(str((pod.get("spec") or {}).get("nodeName") or ""))
    uid = pod["metadata"]["uid"]
    events = _items(api, CORE_EVENTS, namespace, kept_event, fieldSelector=f"involvedObject.uid={uid}")
    has_claims = bool((pod.get("spec") or {}).get("resourceClaims"))
    claims = _items(api, RESOURCE_CLAIMS, namespace, kept_claim) if has_claims else []
    return pod_detail(PodFacts(pod, events, shares, nodes, claims))


def _items(
    api: ApiReader, resource: Resource, namespace: str, keep: Callable[[Object], Object | None], **selectors: str
) -> list[Object]:
    """What `keep` makes of the first items of a list; empty where they may not be read."""
    kept: list[Object] = []
    try:
        for page in api.pages(resource, namespace, **selectors):
            kept += (part for part in map(keep, page.items) if part is not None)
            if len(kept) >= MOST_ITEMS:
                break
    except (KubeError, UnreachableError):
        return []
    return kept[:MOST_ITEMS]
