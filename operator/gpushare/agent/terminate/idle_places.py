"""Takes places back from clients that launch nothing, where their share says so (`clients.queue.idleAfter`).

Guarantees: a client is ended through its MPS daemon, so that its neighbours go on, with an event a minute before and
one after. Signals go only to processes whose contexts were ended before, and that still hold their memory. Who goes,
and when, is decided in `observe.idle`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpushare.agent.observe.idle import (
    NOTICE_SECONDS,
    IdleCourse,
    IdleStep,
    follow_activity,
    idle_containers,
    idle_steps,
)
from gpushare.agent.observe.usage import Reading
from gpushare.agent.observe.violations import describe
from gpushare.agent.process.processes import identity
from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.agent.terminate.requests import TerminationReason, TerminationRequest
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, pod_reference
from gpushare.kube.events.recorder import EventRecorder
from gpushare.messages.wording import count_of
from gpushare.mps.wire import BrokerState


@dataclass(frozen=True, slots=True)
class QueuedGpu:
    """A GPU whose share has a queue. `utilization`: percent; None: the GPU reports none. `is_open`: it lets somebody
    in.
    """

    broker: BrokerState
    utilization: int | None
    is_open: bool

    @property
    def wanted(self) -> int:
        """How many containers wait and would get the place of another."""
        places = self.broker.places
        full = places is not None and len(places.held) >= places.limit
        return self.broker.waiting if full and self.is_open else 0


def idle_requests(due: Iterable[IdleStep], wanted: int, share: ShareName) -> list[TerminationRequest]:
    """Pure. The ends, or the signals, of steps that are no notices."""
    return [
        TerminationRequest(
            TerminationReason.IDLE,
            step.usage.uuid,
            process,
            _pod(step),
            f" ({describe(step.usage)})",
            _why(step, wanted, share),
            signal=step.signal,
            after=step.processes if step.signal is not None else (),
        )
        for step in due
        for process in step.processes
    ]


class IdlePlaces:
    """Follows the GPUs of shares that say `idleAfter`."""

    def __init__(self, executor: TerminationExecutor, recorder: EventRecorder) -> None:
        self._executor = executor
        self._recorder = recorder
        self._courses: dict[Uuid, IdleCourse] = {}

    def observe(
        self, readings: Iterable[Reading], queued: Mapping[Uuid, QueuedGpu], shares: Mapping[ShareName, GpuShare]
    ) -> None:
        """Takes new readings of GPUs. `queued`: those whose broker knows of a queue. Never waits."""
        self._courses = {uuid: course for uuid, course in self._courses.items() if uuid in queued}
        for reading in readings:
            share, gpu = shares.get(reading.share), queued.get(reading.uuid)
            idle_after = share.idle_after_seconds if share is not None else None
            if gpu is None or idle_after is None:
                self._courses.pop(reading.uuid, None)
                continue
            self._judge(reading, gpu, idle_after)

    def _judge(self, reading: Reading, gpu: QueuedGpu, idle_after: float) -> None:
        clients = {identity(process) for usage in reading.usages for process in usage.processes}
        before = self._courses.get(reading.uuid, IdleCourse())
        course = follow_activity(before, gpu.broker, gpu.utilization, clients, reading.taken_at)
        idle = idle_containers(course, reading, gpu.broker.activity)
        self._courses[reading.uuid], steps = idle_steps(course, reading, idle, gpu.wanted, idle_after)
        for step in steps:
            if not step.processes:
                self._recorder.record(_notice(step, gpu.wanted, reading.share, idle_after))
        self._executor.submit(idle_requests(steps, gpu.wanted, reading.share))


def _notice(step: IdleStep, wanted: int, share: ShareName, idle_after: float) -> Event:
    left = max(NOTICE_SECONDS, idle_after - step.idle_seconds)
    note = (
        f"GPU {step.usage.uuid} of GpuShare {share}: {describe(step.usage)} has launched nothing for "
        f"{step.idle_seconds:.0f} s, and {_others(wanted)} for a place. Unless it launches something, its CUDA "
        f"contexts are ended in {left:.0f} s (clients.queue.idleAfter): save what is on the GPU."
    )
    subject = step.usage.container
    return Event(_pod(step), "Warning", EventReason.IDLE_NOTICE, "GiveNotice", note, subject, happened=True)


def _why(step: IdleStep, wanted: int, share: ShareName) -> str:
    if step.signal is not None:
        return (
            f": its CUDA contexts were ended since it was idle, and it still holds memory of GPU {step.usage.uuid} "
            "that the next holder of its place needs (clients.queue.idleAfter)."
        )
    return (
        f" on GPU {step.usage.uuid} through its MPS daemon, as GpuShare {share} says (clients.queue.idleAfter): it has "
        f"launched nothing for {step.idle_seconds:.0f} s, and {_others(wanted)} for a place. The process gets CUDA "
        "error 810: start it again, or restart the notebook's kernel, to wait for a place."
    )


def _others(wanted: int) -> str:
    return "another container waits" if wanted == 1 else f"{count_of(wanted, 'other container')} wait"


def _pod(step: IdleStep) -> Object:
    return pod_reference(step.usage.namespace, step.usage.pod, step.usage.pod_uid)
