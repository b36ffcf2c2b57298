"""Runs one case of a comparison: starts its copies, waits until all print figures, measures, ends them.

Guarantees: when `run_case` returns or raises, no process of it is left.
"""

import os
import time
from dataclasses import dataclass

from gpushare.kubectl.rules.trial.cases import CaseEnded, CaseOutcome, Ending, TrialCase, TrialMode, WindowFigures
from gpushare.kubectl.rules.trial.printed import (
    CopyFigures,
    NoFiguresError,
    ended_early,
    figures_by_program,
    figures_from,
    note_of_ends,
    note_of_latency,
)
from gpushare.kubectl.rules.trial.protect import RATE_VARIABLE
from gpushare_workload.compare.options import CompareRequest
from gpushare_workload.events import WrongError, say
from gpushare_workload.gpus.monitor import GpuMonitor
from gpushare_workload.gpus.utilisation import GpuSampler
from gpushare_workload.mps.daemon import OwnDaemon
from gpushare_workload.mps.listed import lasting, without_strangers, wrong_copies
from gpushare_workload.mps.modes import limited
from gpushare_workload.processes.copies import Copy, CopyGroup
from gpushare_workload.processes.stopping import Stop

SEEN_SECONDS = 2.0
"""The memory of a program that used the GPU was seen by then, however briefly it had a context."""
WAITING_SECONDS = 15.0
"""Time between two lines that say for what a case waits."""


@dataclass(frozen=True, slots=True)
class CaseRunner:
    """Runs cases one by one on the GPU of `daemon`."""

    request: CompareRequest
    daemon: OwnDaemon
    monitor: GpuMonitor
    stop: Stop

    def run_case(self, case: TrialCase, repeat: int, rate: float | None = None) -> CaseOutcome:
        """`rate`: what the first program is to be asked; None: nothing is said. Raises StoppedError, ControlError,
        WrongError for copies in another mode, ValueError for no such program.
        """
        sampler = GpuSampler.of(self.monitor)
        began, threads = time.monotonic(), self._threads(case)
        with self.daemon.ready_for(threads) as environment, CopyGroup(self.request.printed, self.stop) as group:
            for program, count in enumerate(case.copies):
                for _ in range(count):
                    own = _own_variables(case, program, rate)
                    group.start(program, self.request.programs[program], {**os.environ, **environment, **own})
            try:
                windows, notes = self._measure(case, group, sampler)
            except CaseEnded as ended:
                return CaseOutcome(case, repeat, ended.ending, reason=str(ended))
            except NoFiguresError as error:
                return CaseOutcome(case, repeat, Ending.FAILED, reason=str(error))
        if missing := note_of_latency(self.request.printed, windows):
            notes = (*notes, missing)
        memory = sampler.memory_mib
        unseen = False if time.monotonic() - began >= SEEN_SECONDS else None
        used = True if memory is not None else unseen
        return CaseOutcome(case, repeat, Ending.MEASURED, windows, "", sampler.busy_percent, memory, notes, used)

    def _threads(self, case: TrialCase) -> float | None:
        """Percent of the SMs of each copy; None without MPS."""
        if not case.mode.under_mps:
            return None
        return (self.request.cap or 100 / case.total) if case.mode is TrialMode.CAPPED else 100

    def _measure(
        self, case: TrialCase, group: CopyGroup, sampler: GpuSampler
    ) -> tuple[tuple[WindowFigures, ...], tuple[str, ...]]:
        times = self.request.times
        if times.window is None:
            return self._to_the_end(case, group, sampler)
        began = said = time.monotonic()

        def often() -> None:
            nonlocal said
            sampler.sample(within_window=False)
            _raise_for_ended(group, case)
            if time.monotonic() - said >= WAITING_SECONDS:
                said = time.monotonic()
                say(_waiting(group, said - began, times.start))

        if not group.pump(began + times.start, lambda: all(_started(copy) for copy in group.copies), often):
            silent = [copy for copy in group.copies if not _started(copy)]
            raise NoFiguresError(
                f"copy {silent[0].number} printed no figure within {times.start:g} s (--start-timeout); "
                f"its last lines:\n{silent[0].last_lines()}"
            )
        group.pump(time.monotonic() + times.warmup, often=often)
        windows = []
        for _ in range(times.windows):
            begin = time.monotonic()
            group.pump(begin + times.window / 2, often=lambda: self._within(sampler, group, case))
            self._check_mode(case, group)
            group.pump(begin + times.window, often=lambda: self._within(sampler, group, case))
            end = time.monotonic()
            figures = []
            for copy in group.copies:
                with figures_from(f"copy {copy.number}"):
                    figures.append(self.request.printed.within(list(copy.lines), begin, end))
            windows.append(_window(case, group, figures))
        return tuple(windows), ()

    def _within(self, sampler: GpuSampler, group: CopyGroup, case: TrialCase) -> None:
        sampler.sample(within_window=True)
        _raise_for_ended(group, case)

    def _to_the_end(
        self, case: TrialCase, group: CopyGroup, sampler: GpuSampler
    ) -> tuple[tuple[WindowFigures, ...], tuple[str, ...]]:
        began, times = time.monotonic(), self.request.times

        def ended() -> bool:
            for copy in group.copies:
                if copy.ended is not None and copy.code:
                    raise _failed(copy, case)
            return all(copy.ended is not None for copy in group.copies)

        if not group.pump(began + times.start, ended, lambda: sampler.sample(within_window=True)):
            running = next(copy for copy in group.copies if copy.ended is None)
            raise NoFiguresError(
                f"copy {running.number} had not ended after {times.start:g} s (--start-timeout; a program without an "
                f"end needs --seconds); its last lines:\n{running.last_lines()}"
            )
        group.pump(time.monotonic() + 0.2)  # what was printed last
        ends = [copy.ended - copy.began for copy in group.copies if copy.ended is not None]
        # Without a rate of its own, what counts is when the last copy was done.
        seconds = [max(ends) if self.request.printed.rate is None else own for own in ends]
        figures = []
        for copy, own in zip(group.copies, seconds, strict=True):
            with figures_from(f"copy {copy.number}"):
                figures.append(self.request.printed.whole(list(copy.lines), own))
        note = note_of_ends(ends, max(ends))
        return (_window(case, group, figures),), (note,) if note else ()

    def _check_mode(self, case: TrialCase, group: CopyGroup) -> None:
        own = {copy.process.pid for copy in group.copies}

        def problem() -> str:
            listed = self.monitor.processes()
            # Under MPS a client that is missed would be an error, and a daemon has no parent that we know.
            return wrong_copies(case.mode, listed if case.mode.under_mps else without_strangers(listed, own))

        if wrong := lasting(problem, self.stop.wait):
            raise WrongError(wrong)


def _own_variables(case: TrialCase, program: int, rate: float | None) -> dict[str, str]:
    """The rate of a service, and the cap of the job beside it."""
    if program == 0:
        asked = rate if case.mode is not TrialMode.CAPACITY else None
        return {} if asked is None else {RATE_VARIABLE: f"{asked:.6g}"}
    return limited(case.way.percent) if case.way else {}


def _started(copy: Copy) -> bool:
    return any(line.rates for line in copy.lines)


def _waiting(group: CopyGroup, seconds: float, longest: float) -> str:
    silent = [copy for copy in group.copies if not _started(copy)]
    last = silent[0].tail[-1] if silent and silent[0].tail else "(it printed nothing)"
    return (
        f"after {seconds:.0f} s {len(silent)} of {len(group.copies)} copies have printed no figure; waiting up to "
        f"{longest:g} s (--start-timeout); copy {silent[0].number if silent else 0} printed last: {last}"
    )


def _raise_for_ended(group: CopyGroup, case: TrialCase) -> None:
    for copy in group.copies:
        if copy.ended is not None:
            raise _failed(copy, case)


def _failed(copy: Copy, case: TrialCase) -> CaseEnded:
    seconds, code = (copy.ended or time.monotonic()) - copy.began, copy.code or 0
    who = "the program" if case.total == 1 else f"copy {copy.number} of {case.total}"
    how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
    return ended_early(who, f"{how} after {seconds:.1f} s", code, copy.last_lines(), figures=bool(copy.lines))


def _window(case: TrialCase, group: CopyGroup, figures: list[CopyFigures]) -> WindowFigures:
    return figures_by_program(len(case.copies), [copy.program for copy in group.copies], figures)
