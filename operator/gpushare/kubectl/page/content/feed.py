"""What the page shows, as rows by key, with a revision for each change: a browser asks for what is newer than it has.

Guarantees: an answer holds MOST_BYTES of rows at most, or one row; who was away for longer than GONE_KEPT removals is
told to begin again. Safe to use from several threads.
"""

import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
"""A JSON object: what the page shows of one thing."""
MOST_BYTES = 512 * 1024
GONE_KEPT = 10_000


class Feed:
    """Rows by key, such as `gpu/GPU-1`; each belongs to the object (`owner`) that it was made from."""

    def __init__(self, epoch: str = "") -> None:
        """`epoch`: of this run of the program, since revisions begin anew with each; default: a random one."""
        self.epoch = epoch or secrets.token_hex(8)
        self._lock = threading.Lock()
        self._revision = 0
        self._forgotten = 0
        self._rows: OrderedDict[str, tuple[int, str | None]] = OrderedDict()
        """Key to (revision, JSON; None: gone), the latest change last."""
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._owned: dict[str, frozenset[str]] = {}
        self._owner: dict[str, str] = {}

    def replace(self, owner: str, rows: Mapping[str, Row]) -> None:
        """Gives `owner` these rows and no others. Rows that are the same as before are no change."""
        with self._lock:
            for key, row in rows.items():
                text = json.dumps(row, separators=(",", ":"))
                self._owner[key] = owner
                if self._rows.get(key, (0, None))[1] != text:
                    self._put(key, text)
            for key in self._owned.pop(owner, frozenset()) - rows.keys():
                if self._owner.get(key) == owner:  # else it has moved, as a GPU may from node to node
                    del self._owner[key]
                    self._put(key, None)
            if rows:
                self._owned[owner] = frozenset(rows)

    def changes(self, epoch: str, since: int) -> str:
        """JSON: {epoch, revision, reset, more, changed: {key: row}, gone: [key]}.

        `reset`: the browser forgets what it has. `more`: there is more already.
        """
        with self._lock:
            reset = epoch != self.epoch or not self._forgotten <= since <= self._revision
            since = 0 if reset else since
            newer: list[tuple[int, str, str | None]] = []
            for key, (revision, text) in reversed(self._rows.items()):
                if revision <= since:
                    break
                newer.append((revision, key, text))
            size, reached = 0, self._revision
            changed: list[str] = []
            gone: list[str] = []
            more = False
            for revision, key, text in reversed(newer):
                size += len(key) + len(text or "") + 8
                if size > MOST_BYTES and (changed or gone):
                    more = True
                    break
                reached = revision
                if text is None:
                    if not reset:
                        gone.append(key)
                else:
                    changed.append(f"{json.dumps(key)}:{text}")
            head = {"epoch": self.epoch, "revision": reached, "reset": reset, "more": more, "gone": gone}
        return f'{json.dumps(head)[:-1]}, "changed": {{{",".join(changed)}}}}}'

    def _put(self, key: str, text: str | None) -> None:
        self._revision += 1
        self._rows[key] = self._revision, text
        self._rows.move_to_end(key)
        self._gone.pop(key, None)
        if text is None:
            self._gone[key] = None
            while len(self._gone) > GONE_KEPT:
                oldest, _ = self._gone.popitem(last=False)
                self._forgotten = max(self._forgotten, self._rows.pop(oldest)[0])
