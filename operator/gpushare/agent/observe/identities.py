"""Whom NVML and the MPS server list, held against each other: clients under a forged PID, clients that never attached,
never took their class or have no place, and more contexts than a container may have. Pure.

NVML shows the true PID of a process. The server shows the PID that the client sent, which a process in a user and PID
namespace of its own may choose among those of that namespace (measured on an H100 and an H200).

Guarantees: a process without a context is nobody here, however long it waits, whatever lists it is in: one that has
called cuInit alone, or has destroyed its contexts. And who is listed under another PID is only told to be so if the
server lists a process that NVML does not: a forged PID is the only way to that.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpushare.agent.observe.usage import (
    ListedProcess,
    Reading,
    Usage,
    newest_first,
)
from gpushare.agent.process.processes import identity

CONTEXT_MIB = 40
"""A process with more memory of the GPU has a context: the smallest takes 60 MiB (5 % of the threads), and a process
without one none."""


@dataclass(frozen=True, slots=True)
class Forgery:
    """`hidden`: the processes of the container that the server lists under other PIDs. `named`: the processes by whose
    PIDs it lists them, as far as they are there; their end through the daemon is that of the hidden ones' contexts.
    """

    hidden: tuple[ListedProcess, ...]
    named: tuple[ListedProcess, ...]


def forgery(usage: Usage, reading: Reading) -> Forgery | None:
    served = reading.served
    if served is None or not usage.mps:
        return None
    hidden = newest_first(
        process for process in usage.living if process.memory_mib >= CONTEXT_MIB and process.pid not in served.contexts
    )
    named = tuple(
        process for process in served.named if not process.started or process.owners == usage.processes[0].owners
    )
    if not hidden or not named:
        return None
    return Forgery(hidden, tuple(process for process in named if process.started and not process.terminated))


def never_attached(usage: Usage, reading: Reading) -> tuple[ListedProcess, ...]:
    """The clients of the container that another process let in."""
    unattached = reading.served.unattached if reading.served is not None else frozenset()
    return newest_first(process for process in usage.living if identity(process) in unattached)


def without_pages(usage: Usage, reading: Reading) -> tuple[ListedProcess, ...]:
    """The best-effort clients of the container that never asked for their pages, so that they give way to nobody."""
    silent = reading.served.without_pages if reading.served is not None else frozenset()
    return newest_first(process for process in usage.living if identity(process) in silent)


def without_place(usage: Usage, reading: Reading) -> tuple[ListedProcess, ...]:
    """The clients of the container that have contexts although it has no place on the GPU."""
    told = reading.served.without_place if reading.served is not None else frozenset()
    return newest_first(process for process in usage.living if identity(process) in told)


def lacks_library(processes: Iterable[ListedProcess], reading: Reading) -> bool:
    """Whether one of them does not see the library by which a client has a class: its container started without."""
    return reading.served is not None and any(identity(item) in reading.served.without_library for item in processes)


def contexts(usage: Usage, reading: Reading) -> int:
    """How many the processes of the container have, by the server's list. Those under a forged PID are left out."""
    served = reading.served
    return sum(served.contexts.get(process.pid, 0) for process in usage.living) if served is not None else 0
