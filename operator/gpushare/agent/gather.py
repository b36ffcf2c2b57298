"""Reads the world once for a tick: a `DecisionInput`, with what earlier turns of the tick leave to remember.

Assignments that were read once stay until the API server shows others.
"""

from collections.abc import Callable, Collection, Mapping

from gpushare.agent.kubelet.plugins import DevicePlugins
from gpushare.agent.podresources.holdings import ShareGpu, merged_holdings
from gpushare.agent.readings import Readings
from gpushare.agent.reconcile import daemon_files
from gpushare.agent.reconcile.decision import DecisionInput, GpuAssessment
from gpushare.agent.settings import AgentSettings
from gpushare.api.gpunode import Assignment, Uuid


class DecisionGatherer:
    """The tick's own: no other loop calls it."""

    def __init__(
        self,
        settings: AgentSettings,
        readings: Readings,
        plugins: DevicePlugins,
        clock: Callable[[], float],
        new_server: Callable[[], None],
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds. `new_server`: called where an MPS server has appeared: readiness needs an
        NVML reading taken later.
        """
        self._settings = settings
        self._readings = readings
        self._plugins = plugins
        self._clock = clock
        self._new_server = new_server
        self._assignments: tuple[Assignment, ...] | None = None
        self._generation = 0
        self._servers: dict[Uuid, tuple[int | None, float]] | None = None
        """(server_pid, when it was first read)."""
        self._verified_at: dict[ShareGpu, float] = {}
        self._withdrawn_at: dict[Uuid, float] = {}
        self._closed_since: dict[Uuid, float] = {}
        self._shut_since: dict[Uuid, float] = {}

    def gather(self) -> DecisionInput:
        """OSError: the GPUs' directories cannot be read."""
        readings, now = self._readings, self._clock()
        self._read_spec()
        readings.directories.read()
        whole_names = readings.directories.whole_names
        return DecisionInput(
            now=now,
            assignments=self._assignments,
            generation=self._generation,
            shares=readings.cache.shares,
            on_disk=readings.directories.shared,
            views=readings.inventory.views,
            kubelet=readings.kubelet.view,
            pending=merged_holdings(self._plugins.pending(whole_names), readings.claims.holdings()),
            server_since=self._server_since(now),
            withdrawn_at=self._withdrawn_at,
            client_ceiling=readings.inventory.client_ceiling,
            brief_seconds=self._settings.intervals.brief,
            verified_at=self._verified_at,
            closed_since=self._closed_since,
            shut_since=self._shut_since,
            undeliverable=readings.devices.problem(),
            daemonless=readings.devices.daemon_problem(),
            modes=self._settings.compute_mode_policy,
            claims_known=not readings.claims.unread,
            whole=readings.directories.whole,
            names_taken=self._names_taken(),
            full="" if daemon_files.has_room(self._settings.root) else str(self._settings.root),
        )

    def remember_verified(self, given: DecisionInput, assessed: Mapping[Uuid, GpuAssessment]) -> None:
        """Which shares' containers may start on which GPUs, at the moment of `given`."""
        share_gpus = {(item.plan.share, uuid): item.readiness for uuid, item in assessed.items()}
        before = {share_gpu: at for share_gpu, at in self._verified_at.items() if share_gpu in share_gpus}
        verified = {share_gpu: given.now for share_gpu, readiness in share_gpus.items() if readiness.takes_clients}
        self._verified_at = {**before, **verified}

    def remember_withdrawn(self, closed: Collection[Uuid]) -> bool:
        """The kubelet is offered no free slots of the GPUs `closed`. True: of one of them it was until now."""
        now = self._clock()
        more = bool(set(closed) - self._withdrawn_at.keys())
        self._withdrawn_at = {uuid: self._withdrawn_at.get(uuid, now) for uuid in closed}
        return more

    def remember_closed(self, closed: Collection[Uuid]) -> None:
        """The ResourceSlice offers the GPUs `closed` to no claim."""
        now = self._clock()
        self._closed_since = {uuid: self._closed_since.get(uuid, now) for uuid in closed}

    def remember_shut(self, shut: Collection[Uuid]) -> None:
        """grants.json of the GPUs `shut`, as it is on disk, lets nobody in."""
        now = self._clock()
        self._shut_since = {uuid: self._shut_since.get(uuid, now) for uuid in shut}

    def _read_spec(self) -> None:
        node = self._readings.cache.gpu_node()
        if node is not None and node.spec.assignments is not None:
            self._generation = node.metadata.generation
            self._assignments = tuple(node.spec.assignments)

    def _names_taken(self) -> frozenset[str]:
        """A kubelet has one plugin for each name. A name that we serve, or by which a container has a GPU of ours, is
        ours to serve; any other only if the kubelet knows no device of it but ours.
        """
        view = self._readings.kubelet.view
        own: dict[str, set[Uuid]] = {}
        for resource, uuid in self._readings.directories.whole_names:
            own.setdefault(resource, set()).add(uuid)
        return frozenset(
            resource
            for resource, uuids in own.items()
            if view is not None
            and not self._plugins.serves(resource)
            and not uuids & view.held_ids.get(resource, frozenset())
            and view.allocatable_ids.get(resource, frozenset()) - uuids
        )

    def _server_since(self, now: float) -> dict[Uuid, float]:
        """When each server_pid was first read. One that was there before this agent needs no later reading of NVML: a
        restart must not close its gate.
        """
        previous = self._servers
        self._servers = {}
        for uuid, item in self._readings.directories.shared.items():
            pid = item.server_pid
            known = previous.get(uuid, (None, 0.0)) if previous is not None else (pid, 0.0)
            if known[0] != pid:
                self._new_server()
            self._servers[uuid] = known if known[0] == pid else (pid, now)
        return {uuid: since for uuid, (_, since) in self._servers.items()}
