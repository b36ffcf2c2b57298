"""Who attached to each GPU and when, as the brokers write it to broker.json.

A broker keeps its latest arrivals alone, and none of the one before it. `ArrivalLog` knows since when it has missed
none: only from then on does it follow from no arrival that a pod has no client.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpushare.api.gpunode import Uuid
from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.files import ModelFiles
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import Arrival, BrokerState
from gpushare.process.procfs import TICKS_PER_SECOND

LOG = logging.getLogger(__name__)
MAX_KEPT = 512
"""Arrivals of each GPU."""


class BrokerFiles:
    def __init__(self, files: ModelFiles) -> None:
        self._files = files
        self._read: dict[GpuDir, BrokerState | None] = {}
        self._problems = LogOnChange(LOG)

    def changed(self, directories: Iterable[GpuDir]) -> list[BrokerState]:
        """What was written since the last call; nothing of files that cannot be read, or that name another GPU."""
        before = self._read
        self._read = {gpu: self._own(gpu) for gpu in directories}
        return [state for gpu, state in self._read.items() if state is not None and state is not before.get(gpu)]

    def _own(self, gpu: GpuDir) -> BrokerState | None:
        state = self._files.read(gpu.broker_state, BrokerState).value
        if state is None or state.uuid == gpu.uuid:
            self._problems.clear(gpu)
            return state
        # The broker, which is unprivileged, may write what it likes there; it is no word about other GPUs.
        self._problems.log("%s names another GPU and is ignored: %.64r", gpu.broker_state, state.uuid, key=gpu)
        return None


@dataclass(frozen=True, slots=True)
class Attaches:
    """Who attached to one GPU. `latest`: the arrivals, newest first. `without_client`: pods, as namespace/name, that
    hold a part of it and have never attached.
    """

    latest: tuple[Arrival, ...] = ()
    without_client: frozenset[str] = frozenset()


NO_ATTACHES = Attaches()


@dataclass(slots=True)
class _Gpu:
    """`since`: none is missing from then on."""

    since: float
    attached: int = 0
    listed: tuple[Arrival, ...] = ()
    kept: list[Arrival] = field(default_factory=list)


class ArrivalLog:
    """Times are CLOCK_BOOTTIME seconds."""

    def __init__(self) -> None:
        self._gpus: dict[Uuid, _Gpu] = {}

    def update(self, state: BrokerState, now: float) -> bool:
        """Whether somebody attached since the last call."""
        gpu = self._gpus.get(state.uuid)
        listed = tuple(state.arrivals)
        if gpu is None:
            gpu = self._gpus[state.uuid] = _Gpu(now)
        elif state.attached < gpu.attached or (gpu.listed and _key(gpu.listed[-1]) not in map(_key, listed)):
            gpu.since = now
        before = {_key(arrival) for arrival in gpu.listed}
        new = [arrival for arrival in listed if _key(arrival) not in before]
        more = bool(new) or state.attached > gpu.attached
        gpu.attached, gpu.listed = state.attached, listed
        gpu.kept += new
        while len(gpu.kept) > MAX_KEPT:
            gpu.since = max(gpu.since, gpu.kept.pop(0).at)
        return more

    def keep(self, present: Collection[Uuid]) -> None:
        """Forgets every other GPU."""
        self._gpus = {uuid: gpu for uuid, gpu in self._gpus.items() if uuid in present}

    def attaches(
        self, uuid: Uuid, holders: Collection[str], absent: Mapping[str, float], names: Mapping[str, str]
    ) -> Attaches:
        """`holders`: the pods that hold a part of the GPU, as namespace/name. `absent`: when each still held none, as
        far as that is known. `names`: of this node's pods, by the uid in the names of their cgroups.
        """
        gpu = self._gpus.get(uuid)
        if gpu is None:
            return NO_ATTACHES
        quiet = frozenset(_without_arrival(gpu, holders, absent, names))
        return Attaches(tuple(reversed(gpu.kept)), quiet)

    def attached(self, uuid: Uuid, processes: Iterable[tuple[int, int]]) -> dict[int, float]:
        """When processes of the GPU attached, by PID, as far as a broker has told. `processes`: PID and start time in
        ticks; the arrival of an earlier process with the same PID is not its own.
        """
        gpu = self._gpus.get(uuid)
        arrived = {arrival.pid: arrival.at for arrival in (*gpu.kept, *gpu.listed)} if gpu is not None else {}
        started = dict(processes)
        return {pid: at for pid, at in arrived.items() if pid in started and at * TICKS_PER_SECOND >= started[pid]}


def _key(arrival: Arrival) -> tuple[int, float]:
    return arrival.pid, arrival.at


def _without_arrival(
    gpu: _Gpu, holders: Collection[str], absent: Mapping[str, float], names: Mapping[str, str]
) -> Iterator[str]:
    if any(not arrival.pod_uid for arrival in gpu.kept if arrival.at >= gpu.since):
        return  # it may be anybody's
    attached = {names.get(arrival.pod_uid, "") for arrival in gpu.kept}
    for name in holders:
        if name not in attached and name in absent and absent[name] > gpu.since:
            yield name
