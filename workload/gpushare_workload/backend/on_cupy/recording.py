"""Launches whose kernels record when and on which SMs they ran, in a buffer of a set size on the GPU."""

from typing import Any

import cupy
import numpy as np

from gpushare_workload.backend.interface import LaunchRecord
from gpushare_workload.backend.on_cupy.errors import translated
from gpushare_workload.backend.on_cupy.kernels import Kernels
from gpushare_workload.backend.work import BLOCK, Counts, Work, first_difference

WORDS = 8
"""Words of one record: start, end, paused, resumed, and 4 with a bit for each SM."""
FIRST_SM_WORD = 4
NEVER = np.iinfo(np.uint64).max
PAUSE_NS = 20_000
"""A gap in a kernel that is longer is a time slice of another process: without one, some microseconds pass."""
ONE = np.float32(1.0)


class CupyRecording:
    def __init__(self, kernels: Kernels, work: Work, launches: int) -> None:
        self.work = work
        self._kernels, self._most, self._launched = kernels, launches, 0
        self._results, self._records = translated(self._buffers)

    def _buffers(self) -> tuple[Any, Any]:
        # One record more: that of the launches beyond the set number.
        empty = np.zeros((self._most + 1, WORDS), np.uint64)
        empty[:, 0] = NEVER
        buffers = cupy.zeros(self.work.threads, cupy.uint32), cupy.asarray(empty)
        cupy.cuda.runtime.deviceSynchronize()
        return buffers

    def launch(self) -> None:
        record = self._records[min(self._launched, self._most)]
        arguments = (self._results, np.int32(self.work.iterations), ONE, record)
        lane = self._kernels.lane(0)
        translated(lambda: self._kernels["recorded"]((self.work.blocks,), (BLOCK,), arguments, stream=lane))
        self._launched += 1

    def records(self) -> list[LaunchRecord]:
        rows = translated(self._read)[: min(self._launched, self._most)]
        return [_record([int(word) for word in row]) for row in rows]

    def _read(self) -> Any:
        cupy.cuda.runtime.deviceSynchronize()
        return self._records.get()

    def wrong(self, launches: int) -> str | None:
        def result() -> Counts:
            cupy.cuda.runtime.deviceSynchronize()
            got: Counts = self._results.get()
            return got

        return first_difference(translated(result), self.work.expected(launches))

    def close(self) -> None:
        translated(cupy.cuda.runtime.deviceSynchronize)
        self._results = self._records = None
        translated(cupy.get_default_memory_pool().free_all_blocks)


def _record(words: list[int]) -> LaunchRecord:
    start, end, paused, resumed = words[:FIRST_SM_WORD]
    sms = sum(word << (64 * place) for place, word in enumerate(words[FIRST_SM_WORD:]))
    if resumed - paused < PAUSE_NS:
        paused = resumed = 0
    return LaunchRecord(start, end, paused, resumed, sms)
