"""A page with a fleet that nobody has: objects and metrics are made, everything from there on is the product's own."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpushare.kubectl.page.cluster.fleet_view import FleetView
from gpushare.kubectl.page.content.feed import Feed
from gpushare.kubectl.page.content.figures import FigureHistory
from gpushare.kubectl.page.content.rows import event_row
from gpushare.kubectl.page.serving.local import serving
from gpushare.kubectl.page.serving.pages import Pages

SECRET = "browser-test"
GPUS = 8
GIB = 1024**3
NAMESPACES = ("ml-search", "speech", "vision", "batch", "notebooks", "fraud")
SHARES = {"inference": 8, "notebooks": 4, "training": 2}
"""Share to perGpu."""


@dataclass
class MadeFleet:
    """`nodes` nodes of 8 GPUs. The same seed makes the same fleet."""

    nodes: int
    seed: int = 1
    feed: Feed = field(default_factory=Feed)
    history: FigureHistory = field(default_factory=FigureHistory)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    looked: list[list[str]] = field(default_factory=list)
    borrowed: dict[str, int] = field(default_factory=dict)
    """GiB that a pod uses above what is reserved for it."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.view = FleetView(self.feed)
        self.loads = {uuid: self.random.uniform(0.1, 0.9) for node in self.names() for uuid in uuids(node)}
        for name, per_gpu in SHARES.items():
            self.view.put_share(self.share(name, per_gpu))
        for node in self.names():
            self.view.put_node(self.node(node))

    def names(self) -> list[str]:
        return [f"gpu-{number}" for number in range(1, self.nodes + 1)]

    def share(self, name: str, per_gpu: int) -> dict[str, Any]:
        gpus = sum(share_of(uuid) == name for node in self.names() for uuid in uuids(node))
        ready = {"type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        return {
            "metadata": {"name": name},
            "spec": {"clients": {"perGpu": per_gpu, "threads": {"default": 25}, "memory": {"default": "16Gi"}}},
            "status": {
                "summary": f"{gpus}/{gpus}", "slots": {"total": gpus * per_gpu, "used": gpus * per_gpu * 3 // 4},
                "threads": "25/100%", "memory": "16Gi/16Gi", "conditions": [ready],
            },
        }  # fmt: skip

    def node(self, name: str, **status: Any) -> dict[str, Any]:
        made = {
            "simulated": True, "driverVersion": "580.95.05", "agentVersion": "0.1.0",
            "gpus": [
                {"uuid": uuid, "index": index, "minor": index, "product": "NVIDIA H200", "memoryMib": 143771,
                 "sms": 132, "computeMode": "ExclusiveProcess"}
                for index, uuid in enumerate(uuids(name))
            ],
            "daemons": [
                {"uuid": uuid, "share": share_of(uuid), "ready": True, "reason": "Ready"} for uuid in uuids(name)
            ],
            "holders": [
                {"uuid": uuid, "share": share_of(uuid), "slots": list(range(len(self.clients(uuid)))),
                 "pods": [f"{namespace}/{pod}" for namespace, pod in self.clients(uuid)][:8]}
                for uuid in uuids(name)
            ],
        }  # fmt: skip
        return {"metadata": {"name": name, "generation": 1}, "status": made | status}

    def clients(self, uuid: str) -> list[tuple[str, str]]:
        """(namespace, pod), the same at each call."""
        chance = random.Random(f"{self.seed}{uuid}")
        count = 0 if chance.random() < 0.15 else chance.randint(SHARES[share_of(uuid)] // 2, SHARES[share_of(uuid)])
        return [(chance.choice(NAMESPACES), f"app-{uuid[4:12]}-{number}") for number in range(count)]

    def scrape(self, node: str, now: float) -> None:
        """Does what the scraper does with the answer of the node's agent."""
        lines = []
        for uuid in uuids(node):
            load = self.loads[uuid] = min(1.0, max(0.0, self.loads[uuid] + self.random.uniform(-0.12, 0.12)))
            load *= bool(self.clients(uuid))
            lines += [
                f'gpushare_gpu_utilization_ratio{{uuid="{uuid}"}} {load:.3f}',
                f'gpushare_gpu_reading_age_seconds{{uuid="{uuid}"}} 1',
                f'gpushare_gpu_memory_free_bytes{{uuid="{uuid}"}} {20 * GIB}',
            ]
            for namespace, pod in self.clients(uuid):
                labels = f'namespace="{namespace}",pod="{pod}",container="main",share="{share_of(uuid)}",uuid="{uuid}"'
                used = random.Random(pod).uniform(0.1, 1.0) * 16 * GIB
                if pod in self.borrowed:
                    used = (16 + self.borrowed[pod]) * GIB
                    lines += [
                        f"gpushare_container_memory_borrowed_bytes{{{labels}}} {self.borrowed[pod] * GIB}",
                        f"gpushare_container_memory_limit_bytes{{{labels}}} {40 * GIB}",
                    ]
                lines += [
                    f"gpushare_container_memory_used_bytes{{{labels}}} {used:.0f}",
                    f"gpushare_container_memory_granted_bytes{{{labels}}} {16 * GIB}",
                    f"gpushare_container_threads_granted_ratio{{{labels}}} 0.25",
                    f"gpushare_container_processes{{{labels}}} 1",
                    f"gpushare_container_processes_granted{{{labels}}} 1",
                ]
        self.feed.replace(f"figures/{node}", self.history.rows(node, "\n".join(lines), now))

    def past(self, seconds: int, step: int = 5) -> None:
        """Figures of the last `seconds`."""
        now = time.time()
        for before in range(seconds, -1, -step):
            for node in self.names():
                self.scrape(node, now - before)

    @contextmanager
    def served(self) -> Iterator[str]:
        """The page's address."""
        about = {"cluster": "example", "namespace": "", "systemNamespace": "gpushare-system"}
        pages = Pages(self.feed, self.looked.append, self.pod, about, ["127.0.0.1"], SECRET)
        with serving(pages, 0) as port:
            yield f"http://127.0.0.1:{port}/{SECRET}/"

    def pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self.pods.get(f"{namespace}/{name}")


def uuids(node: str) -> list[str]:
    number = int(node.rpartition("-")[2])
    return [f"GPU-{number:06x}{index:02x}-0000-4000-8000-000000000000" for index in range(GPUS)]


def share_of(uuid: str) -> str:
    return list(SHARES)[int(uuid[4:12], 16) % 7 % len(SHARES)]


def pod_answer(namespace: str, name: str, uuid: str, node: str, sentence: str, events: list[Any]) -> dict[str, Any]:
    """An answer of a pod as `pod_detail` makes it."""
    return {
        "namespace": namespace, "name": name, "shares": [share_of(uuid)], "stage": "running", "sentence": sentence,
        "hint": "", "since": "2026-01-01T00:00:00Z", "node": node, "phase": "Running",
        "grants": [{"of": "main", "amounts": "25% of the SMs, 16Gi, 1 process"}],
        "gpus": [{"uuid": uuid, "node": node, "share": share_of(uuid), "neighbours": []}],
        "events": [event_row(event) for event in events],
    }  # fmt: skip
