"""Clients that keep a place on a GPU and launch nothing, while others wait for one: who has to go, and when. Pure.

A client is idle since its last launch, and since its work ended, by its page of activity. One without a page is idle as
long as the whole GPU is. What is not known is not idle.

Guarantees: nobody is ended unless all places are taken, somebody waits, and his notice is NOTICE_SECONDS old; and no
more clients than wait. An agent that starts anew knows of no idleness and no notice: both begin again.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from signal import Signals

from gpushare.agent.observe.borrowing import LINGER_SECONDS
from gpushare.agent.observe.usage import ListedProcess, Reading, Usage, newest_first
from gpushare.agent.process.processes import Identity, identity
from gpushare.api.client_class import ClientClass
from gpushare.mps.identity import Container
from gpushare.mps.wire import BrokerState, ClientActivity

NOTICE_SECONDS = 60.0
FORGOTTEN_SECONDS = 300.0
"""An ended container is followed for so long: whatever it has then is left to it."""


@dataclass(frozen=True, slots=True)
class Idle:
    """`since`: CLOCK_BOOTTIME seconds."""

    usage: Usage
    since: float


@dataclass(frozen=True, slots=True)
class IdleEnding:
    processes: frozenset[Identity]
    at: float


@dataclass(frozen=True, slots=True)
class IdleCourse:
    """What one GPU came to by earlier readings. `active`: seconds with work under way of each process, and since when
    they are so many. `gpu_idle_since`: of the whole GPU; None: it is not idle, or that is not known.
    """

    active: Mapping[Identity, tuple[float, float]] = field(default_factory=dict)
    gpu_idle_since: float | None = None
    notices: Mapping[Container, float] = field(default_factory=dict)
    endings: Mapping[Container, IdleEnding] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IdleStep:
    """What is to be done about a container: notice without `processes`; else their end, or `signal` to them."""

    usage: Usage
    idle_seconds: float
    processes: tuple[ListedProcess, ...] = ()
    signal: Signals | None = None


def follow_activity(
    course: IdleCourse, broker: BrokerState, utilization: int | None, clients: Collection[Identity], now: float
) -> IdleCourse:
    """`utilization`: percent of the whole GPU; None: it reports none. `clients`: those that are there. `now`:
    CLOCK_BOOTTIME seconds.
    """
    active = {}
    for item in broker.activity:
        process = (item.pid, item.started)
        if process in clients and not item.fault:
            before = course.active.get(process)
            same = before is not None and before[0] == item.active_seconds
            active[process] = before if before is not None and same else (item.active_seconds, now)
    since = (now if course.gpu_idle_since is None else course.gpu_idle_since) if utilization == 0 else None
    return replace(course, active=active, gpu_idle_since=since)


def idle_containers(course: IdleCourse, reading: Reading, activity: Iterable[ClientActivity]) -> list[Idle]:
    """Containers with contexts that are idle, in the order in which they go: those that are protected last, of the
    others those that are idle longest first.
    """
    launched = {(item.pid, item.started): item.last_launch for item in activity}
    result = []
    for usage in reading.usages:
        if usage.mps and usage.slot and usage.living and not usage.by_default and usage.container:
            times = [_idle_since(course, identity(process), launched) for process in usage.living]
            known = [since for since in times if since is not None]
            if len(known) == len(times):
                result.append(Idle(usage, max(known)))
    return sorted(result, key=lambda item: (_is_protected(item.usage), item.since, item.usage.place))


def _idle_since(course: IdleCourse, process: Identity, launched: Mapping[Identity, float | None]) -> float | None:
    if process not in course.active:
        return course.gpu_idle_since
    return max(course.active[process][1], launched.get(process) or 0.0)


def _is_protected(usage: Usage) -> bool:
    return usage.grant is not None and usage.grant.client_class is ClientClass.PROTECTED


def idle_steps(
    course: IdleCourse, reading: Reading, idle: Iterable[Idle], wanted: int, idle_after: float
) -> tuple[IdleCourse, list[IdleStep]]:
    """`wanted`: so many containers wait, and no place is free. `idle_after`: seconds."""
    now, steps = reading.taken_at, list[IdleStep]()
    endings = {key: item for key, item in course.endings.items() if now - item.at < FORGOTTEN_SECONDS}
    for key, ending in list(endings.items()):
        left = _left(key, ending, reading)
        if not left:
            del endings[key]
        elif (follow_up := _follow_up(key, ending, left, reading)) is not None:
            steps.append(follow_up)
    going = wanted - len(endings)
    due = [item for item in idle if item.usage.place not in endings and _is_due(item, now, idle_after)]
    notices = {}
    for item in due[: max(0, going)]:
        key, seconds = item.usage.place, now - item.since
        given = course.notices.get(key)
        if given is None:
            steps.append(IdleStep(item.usage, seconds))
        elif seconds >= idle_after and now - given >= NOTICE_SECONDS:
            processes = item.usage.living
            endings[key] = IdleEnding(frozenset(map(identity, processes)), now)
            steps.append(IdleStep(item.usage, seconds, processes))
            continue
        notices[key] = now if given is None else given
    return replace(course, notices=notices, endings=endings), steps


def _is_due(item: Idle, now: float, idle_after: float) -> bool:
    """Whether it is time for its notice."""
    return now - item.since >= idle_after - NOTICE_SECONDS


def _left(key: Container, ending: IdleEnding, reading: Reading) -> tuple[ListedProcess, ...]:
    held = (usage for usage in reading.usages if usage.place == key)
    return newest_first(
        process for usage in held for process in usage.processes if identity(process) in ending.processes
    )


def _follow_up(
    key: Container, ending: IdleEnding, left: tuple[ListedProcess, ...], reading: Reading
) -> IdleStep | None:
    """A process whose contexts were ended keeps its memory until it exits, which the next holder of its place needs."""
    usage = next(item for item in reading.usages if item.place == key)
    seconds = reading.taken_at - ending.at
    if living := tuple(process for process in left if not process.terminated):
        return IdleStep(usage, seconds, living)  # the MPS daemon has not been reached yet
    beside = any(item.living for item in reading.usages if item.place == key)
    if beside or seconds < LINGER_SECONDS:
        return None  # the end of its main process would cut off the kernels of those beside it
    return IdleStep(usage, seconds, left, Signals.SIGTERM if seconds < 2 * LINGER_SECONDS else Signals.SIGKILL)
