"""The agent's counters and histograms. Gauges are in `metrics`."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram

from gpushare.agent.status.metrics import FAMILIES, NodeSnapshot, samples
from gpushare.agent.terminate.requests import TerminationReason
from gpushare.api.gpunode import ShareName
from gpushare.metrics.exported import Exported
from gpushare.mps.wire import RefusedAttach

FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)


def export(take: Callable[[], NodeSnapshot]) -> tuple[Exported, "NodeMeters"]:
    """All metrics of an agent. `take` is called in the event loop, at each scrape."""
    exported = Exported("agent")
    exported.snapshot(FAMILIES, take, samples)
    return exported, NodeMeters(exported.registry)


class NodeMeters:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._loops = Histogram(
            "gpushare_loop_duration_seconds",
            "One turn of a loop of the agent: tick, poll_gpus (NVML), poll_kubelet, observe, scan (driver), report.",
            ["loop"],
            buckets=FAST,
            registry=registry,
        )
        self._allocate = Histogram(
            "gpushare_allocate_duration_seconds",
            "Time that Allocate took to make a container's edits; the kubelet starts no other pod meanwhile.",
            buckets=FAST,
            registry=registry,
        )
        self._allocate_refused = Counter(
            "gpushare_allocate_refused",
            "Allocations refused because the share could no longer serve them.",
            registry=registry,
        )
        self._ready = Histogram(
            "gpushare_allocation_ready_seconds",
            "Time from Allocate until the container's GPU was verified and had room for it (PreStartContainer).",
            buckets=SLOW,
            registry=registry,
        )
        self._not_ready = Counter(
            "gpushare_prestart_not_ready",
            "Times that PreStartContainer found a container's GPU not ready; it checks twice a second, for 20 s.",
            registry=registry,
        )
        self._ended = Counter(
            "gpushare_clients_ended",
            "CUDA clients terminated through their MPS daemon, by cause: departure, maxWait, violation, idle or "
            "shortage.",
            ["cause"],
            registry=registry,
        )
        self._not_ended = Counter(
            "gpushare_client_end_failures",
            "Attempts in which clients that were due could not be terminated, by cause.",
            ["cause"],
            registry=registry,
        )

        self._attach_refused = Counter(
            "gpushare_attach_refused",
            "Processes that the GPU's attach broker refused while this agent ran, by reason (docs/reasons.md).",
            ["share", "reason"],
            registry=registry,
        )

        for reason in TerminationReason:
            if reason is not TerminationReason.FAULT:  # those get signals: their MPS daemon is never asked
                self._ended.labels(reason.value)
                self._not_ended.labels(reason.value)

    def observe_turn(self, loop: str, seconds: float) -> None:
        """One turn of a loop of the agent took so long."""
        self._loops.labels(loop).observe(seconds)

    def observe_allocate(self, seconds: float, *, refused: bool) -> None:
        """Allocate took so long to make a container's edits, or refused them."""
        self._allocate.observe(seconds)
        if refused:
            self._allocate_refused.inc()

    def count_not_ready(self) -> None:
        """PreStartContainer found a container's GPU not ready."""
        self._not_ready.inc()

    def observe_ready(self, seconds: float) -> None:
        """A container was allowed to start so long after its allocation."""
        self._ready.observe(seconds)

    def count_refused(self, share: ShareName, reason: RefusedAttach, count: int) -> None:
        """An attach broker of the share refused so many processes more."""
        self._attach_refused.labels(share, reason.value).inc(count)

    def count_attempt(self, reason: TerminationReason, terminated: int, failed: bool) -> None:
        """A turn of `TerminationExecutor` has ended: `failed` if other clients could not be terminated."""
        self._ended.labels(reason.value).inc(terminated)
        if failed:
            self._not_ended.labels(reason.value).inc()
