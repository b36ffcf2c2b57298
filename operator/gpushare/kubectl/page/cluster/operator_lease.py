"""Looks now and then at the operator's Lease: of what is said of shares nothing shows that nobody renews it."""

import threading
from collections.abc import Callable

from gpushare.api.names import OPERATOR_LEASE
from gpushare.kube.resources import LEASES, KubeError
from gpushare.kubectl.api import ApiReader
from gpushare.kubectl.failures import UnreachableError
from gpushare.kubectl.views.leases import operator_silence

LOOK_SECONDS = 10.0


class OperatorLease:
    """`run` is the thread's part; `note` is told that the operator is silent, and "" once it is not, or where the Lease
    cannot be read."""

    def __init__(self, api: ApiReader, namespace: str, note: Callable[[str], None]) -> None:
        """`namespace`: gpushare's own."""
        self._api = api
        self._path = LEASES.path(namespace, OPERATOR_LEASE)
        self._note = note

    def run(self, stop: threading.Event) -> None:
        self.look()
        while not stop.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        try:
            lease = self._api.read(self._path)
            silence = operator_silence([lease], self._api.time())
        except (KubeError, UnreachableError, LookupError, TypeError, ValueError, AttributeError):
            silence = ""
        self._note(silence)
