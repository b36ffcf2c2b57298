"""The points of a running installation: which were passed, and which one is to be the last of its process."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare.process import users

USERS = {
    "agent": 0,
    "mps-supervisor": 0,
    "mps-broker": users.BROKER,
    "operator": users.OPERATOR,
    "webhook": users.WEBHOOK,
    "uninstall": users.HOOKS,
}
"""The user of each part, who has to remove the order that he carries out."""
OF_WRITES = ("before", "after", "middle")
OF_WATCHES = ("late", "twice", "missed")


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """`text`: as `faultpoints` tells it. `partly`: it has a middle."""

    text: str
    partly: bool = field(default=False, compare=False)

    @property
    def role(self) -> str:
        return self.text.partition(":")[0]

    def moments(self) -> tuple[str, ...]:
        if self.text.startswith(f"{self.role}: watch "):
            return OF_WATCHES
        return OF_WRITES if self.partly else OF_WRITES[:2]


@dataclass(frozen=True, slots=True, order=True)
class Order:
    """`when`: before | after | middle of a write; late | twice | missed of a watch's event."""

    point: Point
    when: str


class Recorder:
    """Reads what the parts tell, and gives them orders."""

    def __init__(self, directory: Path) -> None:
        """`directory`: where all parts tell of points, as this machine reaches it."""
        self._directory = directory

    def clear(self) -> None:
        """Forgets all points and orders."""
        for order in self._directory.glob("order-*.json"):
            order.unlink(missing_ok=True)
        hits = self._directory / "hits.jsonl"
        hits.unlink(missing_ok=True)
        hits.touch()
        hits.chmod(0o666)

    def order(self, orders: Iterable[Order]) -> None:
        """Each process of a part that passes the point is a candidate; the first one carries the order out."""
        for number, order in enumerate(orders):
            user = USERS[order.point.role]
            path = self._directory / f"new-{number}.json"
            path.write_text(json.dumps({"point": order.point.text, "when": order.when, "skip": 0}))
            os.chown(path, user, user)
            path.rename(self._directory / f"order-{number}.json")

    def passed(self) -> Counter[Point]:
        """Every point since `clear`, with how often."""
        return Counter(Point(line["point"], line["partly"]) for line in self._lines() if "point" in line)

    def carried_out(self) -> set[Order]:
        """Orders that were, since `clear`."""
        return {Order(Point(line["done"]), line["when"]) for line in self._lines() if "done" in line}

    def died(self) -> Counter[str]:
        """How many processes of each part ended by an order since `clear`."""
        return Counter(line["died"] for line in self._lines() if line.get("died"))

    def _lines(self) -> list[dict[str, Any]]:
        """The lines without one that is being written."""
        whole, _, _ = (self._directory / "hits.jsonl").read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]
