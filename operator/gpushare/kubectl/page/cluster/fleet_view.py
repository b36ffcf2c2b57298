"""What is known of the cluster, and the rows that follow from it. Safe to use from the threads of all watches."""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence

from gpushare.api import names
from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.kube.claims import requested_classes
from gpushare.kube.pods import asks_for_gpu
from gpushare.kube.resources import Object
from gpushare.kubectl.page.cluster.watch import Key
from gpushare.kubectl.page.content.feed import Feed
from gpushare.kubectl.page.content.rows import newest_events, node_rows, pending_rows, share_rows
from gpushare.kubectl.views.events import concerns_gpushare
from gpushare.kubectl.views.objects import read
from gpushare.kubectl.wrong import WrongInputError

MOST_EVENTS = 400
"""Shown; Kubernetes keeps them for an hour."""
MOST_PENDING = 400
JUDGE_SECONDS = 2.0


class FleetView:
    """`put_…` and `remove_…` are for watches. They never raise: what cannot be read becomes a note on the page."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._lock = threading.Lock()
        self._shares: dict[str, GpuShare] = {}
        self._nodes: dict[str, GpuNode] = {}
        self._pods: dict[Key, Object] = {}
        self._claims: dict[Key, Object] = {}
        self._events: OrderedDict[str, Object] = OrderedDict()
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
                self._pods[_key(item)] = item
            self._changed.set()

    def remove_pod(self, key: Key) -> None:
        with self._lock:
            self._pods.pop(key, None)
        self._changed.set()

    def put_claim(self, item: Object) -> None:
        if any(map(names.parse_device_class, requested_classes(item))):
            with self._lock:
                self._claims[_key(item)] = item
            self._changed.set()

    def remove_claim(self, key: Key) -> None:
        with self._lock:
            self._claims.pop(key, None)

    def put_event(self, item: Object) -> None:
        if not concerns_gpushare(item):
            return
        uid = str(item["metadata"].get("uid") or item["metadata"]["name"])
        with self._lock:
            self._events[uid] = item
            self._events.move_to_end(uid)
            while len(self._events) > 2 * MOST_EVENTS:
                self._events.popitem(last=False)
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
            pods, shares, nodes = list(self._pods.values()), dict(self._shares), dict(self._nodes)
            claims, events = self._claims_by_namespace(), list(self._events.values())
        self._feed.replace("pending", pending_rows(pods, shares, nodes, claims, MOST_PENDING))
        self._feed.replace("events", newest_events(events, MOST_EVENTS))

    def run(self, stop: threading.Event) -> None:
        """Judges after each change, at most every JUDGE_SECONDS."""
        while not stop.wait(JUDGE_SECONDS):
            if self._changed.is_set():
                self._changed.clear()
                try:
                    self.judge()
                except (LookupError, TypeError, ValueError, AttributeError) as error:
                    self.note("waiting pods", f"an object cannot be read: {error!r}")

    def _claims_by_namespace(self) -> Mapping[str, Sequence[Object]]:
        by_namespace: dict[str, list[Object]] = defaultdict(list)
        for (namespace, _), claim in self._claims.items():
            by_namespace[namespace].append(claim)
        return by_namespace


def _key(item: Object) -> Key:
    return str(item["metadata"].get("namespace") or ""), str(item["metadata"]["name"])
