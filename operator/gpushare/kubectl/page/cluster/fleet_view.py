"""What is known of the cluster, and the rows that follow from it. Safe to use from the threads of all watches."""

import threading
from collections.abc import Callable

from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.kube.pods import asks_for_gpu
from gpushare.kube.resources import Object
from gpushare.kubectl.failures import WrongInputError
from gpushare.kubectl.kept import kept_claim, kept_event, kept_waiting_pod
from gpushare.kubectl.page.cluster.fair_store import FairStore, Key
from gpushare.kubectl.page.content.feed import Feed
from gpushare.kubectl.page.content.rows import event_rows, node_rows, pending_rows, share_rows
from gpushare.kubectl.views.events import concerns_gpushare
from gpushare.kubectl.views.objects import read

MOST_EVENTS = 400
"""Shown; Kubernetes keeps them for an hour."""
MOST_PENDING = 400
PODS_BYTES, CLAIMS_BYTES, EVENTS_BYTES = (mib * 1024 * 1024 for mib in (8, 16, 1))
"""As JSON, of all namespaces; in memory they take some five times as much. A pod that waits has about 1 KB, a claim and
an event half of that."""
JUDGE_SECONDS = 2.0


class FleetView:
    """`put_…` and `remove_…` are for watches. They never raise: what cannot be read becomes a note on the page."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._lock = threading.Lock()
        self._shares: dict[str, GpuShare] = {}
        self._nodes: dict[str, GpuNode] = {}
        self._pods, self._claims = FairStore(PODS_BYTES), FairStore(CLAIMS_BYTES)
        self._events = FairStore(EVENTS_BYTES, oldest_go=True)
        self._changed = threading.Event()

    def put_share(self, item: Object) -> None:
        name = item["metadata"]["name"]
        try:
            share = read(GpuShare, [item])[0]
        except WrongInputError as error:
            self.note(f"share {name}", str(error))
            return
        with self._lock:
            self._shares[name] = share
            self._feed.replace(f"share/{name}", share_rows(share))
        self._changed.set()

    def remove_share(self, key: Key) -> None:
        with self._lock:
            self._shares.pop(key[1], None)
            self._feed.replace(f"share/{key[1]}", {})
        self.note(f"share {key[1]}", "")
        self._changed.set()

    def put_node(self, item: Object) -> None:
        name = item["metadata"]["name"]
        try:
            node = read(GpuNode, [item])[0]
        except WrongInputError as error:
            self.note(f"node {name}", str(error))
            return
        with self._lock:
            self._nodes[name] = node
            self._feed.replace(f"node/{name}", node_rows(node))

    def remove_node(self, key: Key) -> None:
        with self._lock:
            self._nodes.pop(key[1], None)
            self._feed.replace(f"node/{key[1]}", {})
            self._feed.replace(f"figures/{key[1]}", {})
        self.note(f"node {key[1]}", "")

    def put_pod(self, item: Object) -> None:
        """A pod that is Pending."""
        if asks_for_gpu(item):
            with self._lock:
                self._pods.put(_key(item), kept_waiting_pod(item))
            self._changed.set()

    def remove_pod(self, key: Key) -> None:
        with self._lock:
            self._pods.remove(key)
        self._changed.set()

    def put_claim(self, item: Object) -> None:
        claim = kept_claim(item)
        if claim is not None:
            with self._lock:
                self._claims.put(_key(item), claim)
            self._changed.set()

    def remove_claim(self, key: Key) -> None:
        with self._lock:
            self._claims.remove(key)

    def put_event(self, item: Object) -> None:
        if not concerns_gpushare(item):
            return
        with self._lock:
            self._events.put(_key(item), kept_event(item))
        self._changed.set()

    def remove_event(self, key: Key) -> None:
        """Kubernetes forgets events after an hour; ours stay until there are too many."""

    def note(self, what: str, message: str) -> None:
        """Says on the page why `what` is missing there; an empty message takes that back."""
        self._feed.replace(f"note/{what}", {f"note/{what}": {"what": what, "message": message}} if message else {})

    def noting(self, what: str) -> Callable[[str], None]:
        return lambda message: self.note(what, message)

    def shares_and_node(self, node: str) -> tuple[dict[str, GpuShare], list[GpuNode]]:
        """What `why` needs of the fleet for a pod of that node."""
        with self._lock:
            known = self._nodes.get(node)
            return dict(self._shares), [known] if known else []

    def judge(self) -> None:
        """Makes the rows that follow from several objects: pods that wait, and the newest events."""
        with self._lock:
            pods, shares, nodes = list(self._pods), dict(self._shares), dict(self._nodes)
            claims, events = self._claims.by_namespace(), list(self._events)
            left_out = {"all waiting pods": self._pods.left_out, "all claims": self._claims.left_out}
        self._feed.replace("pending", pending_rows(pods, shares, nodes, claims, MOST_PENDING))
        self._feed.replace("events", event_rows(events, MOST_EVENTS))
        for what, message in left_out.items():
            self.note(what, message)

    def run(self, stop: threading.Event) -> None:
        """Judges after each change, at most every JUDGE_SECONDS."""
        while not stop.wait(JUDGE_SECONDS):
            if self._changed.is_set():
                self._changed.clear()
                try:
                    self.judge()
                except (LookupError, TypeError, ValueError, AttributeError) as error:
                    self.note("waiting pods", f"an object cannot be read: {error!r}")


def _key(item: Object) -> Key:
    return str(item["metadata"].get("namespace") or ""), str(item["metadata"]["name"])
