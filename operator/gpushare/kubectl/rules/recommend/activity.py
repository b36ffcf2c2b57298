"""Clients that do nothing, and clients that could give way, by what their own processes say of their activity. Pure.

What a program says decides nothing: these are lines to look at, and never surer than medium.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from gpushare.api.client_class import ClientClass
from gpushare.api.names import ANNOTATION_CLASS
from gpushare.kubectl.rules.recommend.advice import Advice, AdviceKind
from gpushare.kubectl.rules.recommend.history import ActivityPast, ContainerPast, HistorySource, Observed, ShareHistory
from gpushare.kubectl.rules.recommend.sureness import Sureness, at_most_medium, length, sureness_of, too_short

MOSTLY = 0.5
"""Who has work under way for so much of its time is a batch program, whatever it is called: a service at its capacity
would wait for itself."""


def by_activity(history: ShareHistory) -> list[Advice]:
    """Of the containers that are there now and were seen for a day and more."""
    if history.source is not HistorySource.PROMETHEUS:
        return []
    seen = [
        (container, container.activity)
        for container in history.containers
        if container.activity is not None and not too_short(history, _observed(history, container.activity), "it")
    ]
    return [*_doing_nothing(history, seen), *_could_give_way(history, seen)]


def _doing_nothing(history: ShareHistory, seen: Iterable[tuple[ContainerPast, ActivityPast]]) -> list[Advice]:
    share = history.share.name
    return [
        Advice(
            AdviceKind.IDLE,
            share,
            f"{past.namespace}/{past.pod}",
            f"a slot of {share}",
            "end it, or scale its controller down",
            f"its container {past.container} has a client on its GPU, and by its own count launched nothing in "
            f"{length(history, _observed(history, did))}; it keeps another one out",
            _sure(history, did),
            {"launches": did.launches, "samples": did.samples, "since": _observed(history, did).since},
        )
        for past, did in seen
        if did.launches == 0
    ]


def _could_give_way(history: ShareHistory, seen: Sequence[tuple[ContainerPast, ActivityPast]]) -> list[Advice]:
    """Workloads of class Normal that work most of the time beside a service that is Protected and works, too."""
    classes = history.share.clients.classes
    if classes is None or ClientClass.BEST_EFFORT not in classes.allowed:
        return []
    services = {past.uuid: past for past, did in seen if did.client_class == ClientClass.PROTECTED and did.launches}
    beside = [
        (past, did)
        for past, did in seen
        if did.client_class == ClientClass.NORMAL and did.active >= MOSTLY and past.uuid in services
    ]
    beside.sort(key=lambda item: (item[0].workload, item[0].container, -item[1].active))
    advice = []
    for (workload, container), of_workload in groupby(beside, key=lambda item: (item[0].workload, item[0].container)):
        past, did = next(of_workload)
        service = services[past.uuid]
        advice.append(
            Advice(
                AdviceKind.BEST_EFFORT,
                history.share.name,
                workload,
                f"class {ClientClass.NORMAL}",
                f"{ANNOTATION_CLASS}: {ClientClass.BEST_EFFORT}",
                f"its container {container} had work under way {did.active:.0%} of the time, by its own count, on the "
                f"GPU of {service.workload}, which is Protected and waits for its kernels "
                f"({length(history, _observed(history, did))})",
                _sure(history, did),
                {
                    "activePercent": round(did.active * 100, 1),
                    "samples": did.samples,
                    "since": _observed(history, did).since,
                },
            )
        )
    return advice


def _observed(history: ShareHistory, did: ActivityPast) -> Observed:
    """From when its samples would have begun, were there no gap."""
    return Observed(did.samples, max(history.begin, history.end - did.samples * history.step))


def _sure(history: ShareHistory, did: ActivityPast) -> Sureness:
    return at_most_medium(sureness_of(history, _observed(history, did)))
