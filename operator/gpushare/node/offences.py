"""Granted against observed: who uses a GPU otherwise than granted, by one reading. Pure.

A grant's memory is for the sum of a container's processes, contexts included. Doubt is in the client's favour: what
cannot be told for certain, such as figures that cannot be true together, is no offence.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpushare.api.conditions import EventReason
from gpushare.grant.model import Grant
from gpushare.node.usage import Listed, Reading, Usage

TOLERANCE_MIB = 128
"""For each process. MPS counts a context at 145 MiB (4 GiB limit, 25 % of the threads, H200) that NVML showed with 148
to 218 MiB, by the kernels loaded; memory comes in pages of 2 MiB, and NVML's figure is cut to whole MiB here. So one
that keeps to its limit may show 75 MiB more than the limit; one that escaped it shows gigabytes."""


@dataclass(frozen=True, slots=True)
class Offence:
    """`granted` and `observed`: MiB, for TOO_MANY_PROCESSES processes.

    `culprits`: the processes to be ended where the share says so, the newest first. Empty where nothing is to be ended:
    of the host, of a pod without a slot, of one whose grant is only assumed or whose way to MPS is missing, or ended
    already. `companions`: the MPS
    clients in the container of culprits that are none.
    """

    reason: EventReason
    usage: Usage
    granted: int
    observed: int
    culprits: tuple[Listed, ...] = ()
    companions: tuple[Listed, ...] = ()


def offences(reading: Reading) -> list[Offence]:
    credible = sum(usage.memory_mib for usage in reading.usages) <= reading.gpu_memory_mib
    unreached = [Offence(EventReason.EDITS_NOT_APPLIED, usage, 0, 0) for usage in reading.without_mounts]
    return [offence for usage in reading.usages for offence in _judge(usage, reading, credible)] + unreached


def _judge(usage: Usage, reading: Reading, credible: bool) -> Iterable[Offence]:
    if not usage.mps:
        yield _past_mps(usage, reading)
    elif usage.pod and not usage.container:
        return  # its pod's status will tell which container it is
    elif not usage.slot:
        yield Offence(EventReason.NO_GRANT, usage, 0, usage.memory_mib)
    elif usage.grant is not None:
        yield from _above_grant(usage, usage.grant, credible)


def _past_mps(usage: Usage, reading: Reading) -> Offence:
    if not usage.slot:
        return Offence(EventReason.NOT_AN_MPS_CLIENT, usage, 0, usage.memory_mib)
    if all(process.bare for process in usage.listed):
        return Offence(EventReason.EDITS_NOT_APPLIED, usage, 0, usage.memory_mib)
    same = [it for it in reading.usages if it.mps and (it.pod_uid, it.container) == (usage.pod_uid, usage.container)]
    companions = tuple(process for it in same for process in _living(it))
    return Offence(EventReason.NOT_AN_MPS_CLIENT, usage, 0, usage.memory_mib, _newest_first(usage.listed), companions)


def _above_grant(usage: Usage, grant: Grant, credible: bool) -> Iterable[Offence]:
    living = _living(usage)
    # All of the container's processes: what one of them does about its end, such as to exit as the main process, or to
    # stop its siblings, could cut off the others' kernels, which would take the neighbours along.
    culprits = () if usage.by_default else living
    if len(living) > grant.processes:
        yield Offence(EventReason.TOO_MANY_PROCESSES, usage, grant.processes, len(living), culprits)
    if credible and usage.memory_mib > grant.memory_mib + TOLERANCE_MIB * usage.processes:
        yield Offence(EventReason.MEMORY_ABOVE_GRANT, usage, grant.memory_mib, usage.memory_mib, culprits)


def _living(usage: Usage) -> tuple[Listed, ...]:
    return _newest_first(process for process in usage.listed if not process.ended)


def _newest_first(processes: Iterable[Listed]) -> tuple[Listed, ...]:
    """The oldest last: it is the container's main process, with which the kernel kills all others."""
    return tuple(sorted(processes, key=lambda process: (process.started, process.pid), reverse=True))


def sentence(offence: Offence) -> str:
    """Who uses what, and what was granted."""
    usage = offence.usage
    who, gpu = whose(usage), f"GPU {usage.uuid} of GpuShare {usage.share}"
    match offence.reason:
        case EventReason.MEMORY_ABOVE_GRANT:
            count = "1 process" if usage.processes == 1 else f"{usage.processes} processes together"
            return f"{who} uses {offence.observed} MiB on {gpu} ({count}), granted are {offence.granted} MiB"
        case EventReason.TOO_MANY_PROCESSES:
            return f"{who} has {offence.observed} CUDA processes on {gpu}, granted are {offence.granted}"
        case EventReason.NOT_AN_MPS_CLIENT:
            listed = ", ".join(str(pid) for pid in usage.pids[:8])
            return (
                f"{who} uses {offence.observed} MiB on {gpu} past MPS (PID {listed}), granted are 0 MiB: no limit "
                "binds it, and while it stays MPS may not start"
            )
        case EventReason.EDITS_NOT_APPLIED:
            return (
                f"{who} holds a slot of {gpu}, but was started without the mounts that go with it, so it cannot reach "
                f"MPS and uses {offence.observed} MiB past it: is CDI off in the node's container runtime?"
            )
    return f"{who} is an MPS client on {gpu} with {offence.observed} MiB, granted are 0 MiB: it holds no slot of it"


def whose(usage: Usage) -> str:
    if usage.pod:
        container = f"container {usage.container}" if usage.container else "an unknown container"
        return f"{container} of pod {usage.namespace}/{usage.pod}"
    pids = ", ".join(str(pid) for pid in usage.pids[:8])
    if usage.pod_uid:
        return f"process {pids} of pod {usage.pod_uid}, which the API does not know,"
    return f"process {pids} of the host"
