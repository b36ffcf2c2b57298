"""The processes that ran kernels at the same time, by the records of their launches. Pure; times in ns of one clock."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpushare_workload.backend.interface import LaunchRecord
from gpushare_workload.events import WrongError

Records = Sequence[Sequence[LaunchRecord]]
"""The records of each process."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many processes ran a kernel at once: the mean over the time in which any did, and the most.

    `running_share`: that time as a part of the time in which every process has records.
    """

    mean: float
    most: int
    running_share: float


def running(record: LaunchRecord) -> list[tuple[int, int]]:
    """(from, to) of the times in which the launch ran: two if a time slice ended in the middle of it."""
    if record.resumed > record.paused:
        return [(record.start, record.paused), (record.resumed, record.end)]
    return [(record.start, record.end)]


def window(processes: Records) -> tuple[int, int]:
    """The time in which every process has records. Raises WrongError if there is none."""
    if not processes or not all(processes):
        raise WrongError("a process recorded no launch: choose a longer --duration")
    begin = max(min(record.start for record in records) for records in processes)
    end = min(max(record.end for record in records) for records in processes)
    if begin >= end:
        raise WrongError("the recorded launches of the processes have no time in common: choose more --records")
    return begin, end


def of(processes: Records) -> Concurrency:
    """The concurrency within the time in which every process has records. Raises WrongError as `window` does."""
    begin, end = window(processes)
    edges: list[tuple[int, int]] = []
    for records in processes:
        for start, stop in _merged([piece for record in records for piece in running(record)]):
            low, high = max(start, begin), min(stop, end)
            if low < high:
                edges += [(low, 1), (high, -1)]
    edges.sort()  # an end comes before a start of the same moment
    now = most = busy = total = 0
    for (moment, change), (following, _) in pairwise(edges):
        now += change
        most = max(most, now)
        busy += (following - moment) * (now > 0)
        total += (following - moment) * now
    return Concurrency(total / busy if busy else 0.0, most, busy / (end - begin))


def _merged(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of intervals: launches of one process that overlap each other count once."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(pieces):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def sms(processes: Records) -> list[frozenset[int]]:
    """The SMs that each process used."""
    used = []
    for records in processes:
        bits = 0
        for record in records:
            bits |= record.sms
        used.append(frozenset(number for number in range(bits.bit_length()) if bits >> number & 1))
    return used


def of_several(used: Sequence[frozenset[int]]) -> frozenset[int]:
    """The SMs that more than one process used."""
    counts = Counter(sm for sms in used for sm in sms)
    return frozenset(sm for sm, processes in counts.items() if processes > 1)


def timeline(processes: Records, most_us: float, launches: int) -> list[tuple[int, float, float]]:
    """(process, from, to) of what ran from the middle of the common time on, in µs since then, in order of time.

    What ran at that moment begins with it.
    """
    begin, end = window(processes)
    begin = (begin + end) // 2
    pieces = sorted(
        (max(start, begin), stop, index)
        for index, records in enumerate(processes)
        for record in records
        for start, stop in running(record)
        if stop > begin and start < min(end, begin + most_us * 1000)
    )
    return [(index, (start - begin) / 1000, (stop - begin) / 1000) for start, stop, index in pieces[:launches]]
