"""The results of one way in a file, written after each case: a call may be cut off, and a later one goes on."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measurements.gpu.stack.bring import Record
from measurements.gpu.stack.place import WORK
from measurements.peers.page import file_of

KEPT = WORK / "peers"
"""Outlasts a call, and a new work tree."""


class Results:
    """`cases`: figures by case; `measured`: when, how long, with which image of the clients; `failed`: why not."""

    def __init__(self, way: str, record: Record, out: Path, known: Path, kept: Path = KEPT) -> None:
        """Begins with what this machine has measured of the way, else with the file in `out`, else in `known`.

        Figures of another GPU or driver, or of a rehearsal where there is a GPU, are left behind.
        """
        self._paths = [folder / file_of(way) for folder in (kept, out)]
        self._image = record.workload_image
        earlier = (_read(path) for path in (*self._paths, known / file_of(way)))
        same = {"simulated": record.simulated, "truth": record.truth}
        usable = (document for document in earlier if document and {key: document.get(key) for key in same} == same)
        document: dict[str, Any] = next(usable, {"cases": {}})
        self._document: dict[str, Any] = {"way": way, **document, "failed": {}, **same}
        self._measured: dict[str, Any] = self._document.setdefault("measured", {})

    def is_done(self, case: str) -> bool:
        """Tells whether it was measured with the clients' image of now. Both images are made from this work tree."""
        return case in self._document["cases"] and self._measured.get(case, {}).get("clients_image") == self._image

    def note(self, **facts: Any) -> None:
        """Facts about all of the way's cases."""
        self._document |= facts
        self._write()

    def done(self, case: str, figures: Mapping[str, Any], seconds: float) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._document["cases"][case] = figures
        self._measured[case] = {"at": at, "seconds": round(seconds, 1), "clients_image": self._image}
        self._write()

    def failed(self, what: str, error: Exception) -> None:
        """`what`: a case, whose earlier figures are dropped, or the installation."""
        self._document["cases"].pop(what, None)
        self._measured.pop(what, None)
        self._document["failed"][what] = f"{type(error).__name__}: {error}"[:2000]
        self._write()

    def _write(self) -> None:
        text = json.dumps(self._document, indent=2) + "\n"
        for path in self._paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_suffix(".new")
            aside.write_text(text)
            aside.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    document: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return document
