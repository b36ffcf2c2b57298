"""Limit variables of processes that attach: one that CUDA cannot read, or above the grant, is reported.

It is reported and not refused. /proc shows what a program was started with; one that sets a variable afterwards, before
its first CUDA call, shows nothing. What such a process then uses beyond its grant is seen by observation. The threads'
variable cannot widen anything: the server's own limit is the grant's while the process attaches.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.grant.environment import memory_variable
from gpushare.kube.events.event import Event, reference
from gpushare.kube.pods import Pod, full_name
from gpushare.mps.wire import Arrival, BrokerState, ClientGrant, GpuGrants
from gpushare.process.procfs import owner_among, read_environment, read_owners

LIMIT_VARIABLES = (names.ENV_THREADS, names.ENV_MEMORY)
MAX_SHOWN = 64
"""Characters of a value in an event."""
_THREADS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,6})?")
_MEMORY = re.compile(r"0=([0-9]{1,9})([MG])B?")
_MIB = {"M": 1, "G": 1024}

Environments = Mapping[int, Mapping[str, str]]
"""The limit variables of processes, by PID."""


@dataclass(frozen=True, slots=True)
class OddVariable:
    """`granted`: the value that says the grant. `effect`: what CUDA makes of the present one, as a clause."""

    name: str
    value: str
    granted: str
    effect: str


def odd_variables(environment: Mapping[str, str], grant: ClientGrant) -> list[OddVariable]:
    """What in a process' environment says something else than at most its grant. An unset variable says nothing."""
    odd = []
    threads = environment.get(names.ENV_THREADS)
    if threads is not None and not (_THREADS.fullmatch(threads) and float(threads) <= grant.threads):
        effect = f"it has no effect, the process has {grant.threads} % of the SMs"
        odd.append(OddVariable(names.ENV_THREADS, threads, str(grant.threads), effect))
    memory = environment.get(names.ENV_MEMORY)
    if memory is not None:
        read = _MEMORY.fullmatch(memory)
        granted = memory_variable(grant.memory_mib)
        if read is None:
            effect = "CUDA may not be able to read it, and then holds no memory limit for this process"
            odd.append(OddVariable(names.ENV_MEMORY, memory, granted, effect))
        elif int(read[1]) * _MIB[read[2]] > grant.memory_mib:
            effect = f"it has no effect, the process has {grant.memory_mib} MiB"
            odd.append(OddVariable(names.ENV_MEMORY, memory, granted, effect))
    return odd


def read_environments(arrivals: Iterable[Arrival], proc: Path) -> dict[int, dict[str, str]]:
    """The environments of those that still run in the pod that attached. May block for as long as a process keeps its
    memory locked.
    """
    environments = {}
    for arrival in arrivals:
        environment = read_environment(arrival.pid, LIMIT_VARIABLES, proc)
        with suppress(OSError):  # whose process it is now is not known
            if environment and owner_among(read_owners(arrival.pid, proc) or (), {arrival.pod_uid}) is not None:
                environments[arrival.pid] = environment
    return environments


class VariableReports:
    """`started`: when this agent did, in CLOCK_BOOTTIME seconds: an earlier one has reported what attached before."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._seen: dict[Uuid, float] = {}

    def new(self, state: BrokerState) -> list[Arrival]:
        """Processes of pods that attached since the last call."""
        since = self._seen.get(state.uuid, self._started)
        arrivals = [arrival for arrival in state.arrivals if arrival.at > since and arrival.pod_uid]
        self._seen[state.uuid] = max((arrival.at for arrival in state.arrivals), default=since)
        return arrivals

    def keep(self, present: Mapping[Uuid, object]) -> None:
        """Forgets every other GPU."""
        self._seen = {uuid: at for uuid, at in self._seen.items() if uuid in present}


def variable_events(
    arrivals: Iterable[Arrival],
    environments: Environments,
    grants: GpuGrants,
    share: ShareName,
    pods: Mapping[str, Pod],
) -> Iterator[Event]:
    """`pods`: this node's, by the uid in the names of their cgroups."""
    granted = {
        (pod.uid, container.name): container.grant
        for pod in grants.pods
        for container in pod.containers
        if container.grant is not None
    }
    for arrival in arrivals:
        pod, grant = pods.get(arrival.pod_uid), granted.get((arrival.pod_uid, arrival.container))
        if pod is None or grant is None:
            continue
        for odd in odd_variables(environments.get(arrival.pid, {}), grant):
            subject = f"{grants.uuid}/{arrival.pod_uid}/{arrival.container}/{odd.name}"
            note = (
                f"GPU {grants.uuid} of GpuShare {share}: a process of container {arrival.container} of pod "
                f"{full_name(pod)} attached with {odd.name}={_shown(odd.value)} where its grant is {odd.granted}: "
                f"{odd.effect}. Leave the variable as the container gets it, or set a lower value in the same form."
            )
            regarding = reference(dict(pod), "v1", "Pod")
            reason = EventReason.LIMIT_VARIABLE_CHANGED
            yield Event(regarding, "Warning", reason, "Attach", note, subject, key=subject, happened=True)


def _shown(value: str) -> str:
    """Printable, and short."""
    text = ascii(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
