"""The points of a running installation: which were passed, and which one is to be the last of its process."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localcluster.stack import NAMESPACE
from tests.cluster.harness import Harness
from tests.cluster.node import processes_of_pod

NODE_DIRECTORY = "/run/gpushare/.faults"
"""Of the parts that mount /run/gpushare; the others have their pod's /dev/shm."""
ON_NODE = {"agent": 0, "mps-supervisor": 0, "mps-broker": 65534}
IN_PODS = {"operator": 65532, "webhook": 65532}
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

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def begin(self) -> None:
        """Before gpushare is installed: the directory on the node has to be there first."""
        path = self._harness.in_node(NODE_DIRECTORY)
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o1777)

    def clear(self) -> None:
        """Forgets all points and orders."""
        for directory in self._directories():
            for order in directory.glob("order-*.json"):
                order.unlink()
            hits = directory / "hits.jsonl"
            hits.unlink(missing_ok=True)
            hits.touch()
            hits.chmod(0o666)

    def order(self, orders: Iterable[Order]) -> None:
        """Each process of a part that passes the point is a candidate; the first one carries the order out."""
        for number, order in enumerate(orders):
            user = {**ON_NODE, **IN_PODS}[order.point.role]
            for directory in self._directories(order.point.role):
                path = directory / f"new-{number}.json"
                path.write_text(json.dumps({"point": order.point.text, "when": order.when, "skip": 0}))
                os.chown(path, user, user)
                path.rename(directory / f"order-{number}.json")

    def passed(self) -> Counter[Point]:
        """Every point since `clear`, with how often."""
        return Counter(Point(it["point"], it["partly"]) for it in self._lines() if "point" in it)

    def carried_out(self) -> set[Order]:
        """Orders that were, since `clear`."""
        return {Order(Point(it["done"]), it["when"]) for it in self._lines() if "done" in it}

    def died(self) -> set[str]:
        """The parts of which a process ended by an order since `clear`."""
        return {it["died"] for it in self._lines() if it.get("died")}

    def _lines(self) -> list[dict[str, Any]]:
        found = []
        for directory in self._directories():
            try:
                found += [json.loads(line) for line in (directory / "hits.jsonl").read_text().splitlines()]
            except (OSError, ValueError):  # the pod ended, or a line is being written
                continue
        return found

    def _directories(self, role: str = "") -> list[Path]:
        roles = [role] if role else ["", *IN_PODS]
        found: list[Path] = []
        for one in roles:
            if one in IN_PODS:
                found += self._of_pods(one)
            else:
                found.append(self._harness.in_node(NODE_DIRECTORY))
        return found

    def _of_pods(self, component: str) -> list[Path]:
        pods = self._harness.kubectl.within(NAMESPACE).items(
            "pods", f"--selector=app.kubernetes.io/component={component}"
        )
        processes = [processes_of_pod(self._harness, pod["metadata"]["uid"], b"gpushare") for pod in pods]
        return [self._harness.in_node(f"/proc/{pids[0]}/root/dev/shm") for pids in processes if pids]
