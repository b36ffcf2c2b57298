"""Events about containers that wait for a place on a GPU, and about GPUs where nobody gets one. Pure."""

from collections.abc import Iterator, Mapping

from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName
from gpushare.kube.events.event import Event, reference
from gpushare.kube.pods import Pod, full_name
from gpushare.messages.wording import count_of, named
from gpushare.mps.wire import BrokerState, PlacesInUse

TOLD_AFTER = 5.0
"""Seconds of waiting that are no news."""
MOST_NAMED = 8


def wait_events(state: BrokerState, share: ShareName, pods: Mapping[str, Pod], now: float) -> Iterator[Event]:
    """Those who wait longer than TOLD_AFTER, each once a wait: the recorder writes what stays so once. `pods`: this
    node's, by the uid in the names of their cgroups. `now`: CLOCK_BOOTTIME seconds.
    """
    if state.places is None:
        return
    for item in state.queue:
        pod = pods.get(item.pod_uid)
        if pod is None or now - item.since < TOLD_AFTER:
            continue
        subject = f"{state.uuid}/{item.container}"
        note = (
            f"GPU {state.uuid} of GpuShare {share}: container {item.container} of pod {full_name(pod)} waits for a "
            f"place since {now - item.since:.0f} s, at position {item.position} of "
            f"{max(state.waiting, item.position)}. "
            f"{_taken(state.places, pod['metadata']['namespace'], pods)} It goes on by itself; `kubectl gpushare why` "
            "shows its position."
        )
        regarding, key = reference(dict(pod), "v1", "Pod"), f"{subject}/{item.since:.1f}"
        yield Event(regarding, "Normal", EventReason.WAITS_FOR_PLACE, "Attach", note, subject, key=key)


def _taken(places: PlacesInUse, namespace: str, pods: Mapping[str, Pod]) -> str:
    """Who has the places: pods of the namespace by name, and of others how many there are."""
    holders = [pods[item.pod_uid] for item in places.held if item.pod_uid in pods]
    own = sorted({full_name(pod) for pod in holders if pod["metadata"]["namespace"] == namespace})
    others = len(places.held) - sum(pod["metadata"]["namespace"] == namespace for pod in holders)
    who = [named("pod", own, MOST_NAMED)] if own else []
    who += [f"{count_of(others, 'container')} of other namespaces"] if others else []
    return f"{count_of(places.limit, 'place')}, held by {' and '.join(who)}." if who else "No place is given just now."
