"""How the work of one process ended, as plain values: these cross a pipe, exceptions do not do so reliably.

Guarantees: `unwrap` returns the result of an outcome, or raises the exception that the work would have raised here.
"""

import signal
import traceback
from dataclasses import dataclass
from typing import Any

from gpushare_workload.backend.interface import GpuError, OutOfMemoryError, UnsupportedError
from gpushare_workload.events import WrongError
from gpushare_workload.processes.stopping import StoppedError


class WorkerError(Exception):
    """A worker died, failed or hung. The text names the worker and says how."""


@dataclass(frozen=True, slots=True)
class Done:
    """The target returned `value`."""

    value: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """CUDA refused a call or failed. `message` is CUDA's text without the error number."""

    code: int
    message: str
    memory: bool
    """Whether an allocation was refused."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The work raised an exception. `kind` is one of KINDS, or `other` with the traceback in `trace`."""

    kind: str
    message: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Died:
    """The process ended without an outcome. `exit_code` as in multiprocessing: negative is a signal."""

    exit_code: int | None
    on_gpu: bool


@dataclass(frozen=True, slots=True)
class Hung:
    """No outcome within the time limit. `state` is the kernel's letter for the process: R, S, D, T (stopped)."""

    seconds: float
    state: str
    on_gpu: bool


Outcome = Done | Refused | Failed | Died | Hung
KINDS: dict[str, type[Exception]] = {
    "wrong": WrongError,
    "argument": ValueError,
    "unsupported": UnsupportedError,
    "stopped": StoppedError,
}


def failure(error: BaseException) -> Refused | Failed:
    """The exception as a value."""
    if isinstance(error, GpuError):
        message = str(error).removeprefix(f"CUDA error {error.code}: ")
        return Refused(error.code, message, isinstance(error, OutOfMemoryError))
    for kind, exception in KINDS.items():
        if type(error) is exception:
            return Failed(kind, str(error))
    return Failed("other", f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


def unwrap(who: str, outcome: Outcome) -> Any:
    """The result.

    Raises GpuError, WrongError, ValueError, StoppedError or WorkerError, each naming the worker `who`.
    """
    match outcome:
        case Done(value):
            return value
        case Refused(code, message, memory):
            raise (OutOfMemoryError if memory else GpuError)(code, f"{who}: {message}")
        case Failed(kind, message) if kind in KINDS:
            raise KINDS[kind](f"{who}: {message}")
        case _:
            raise WorkerError(f"{who} {describe(outcome)}")


def describe(outcome: Outcome) -> str:
    """A predicate for the worker's name, such as `was ended by SIGKILL before it gave a result`."""
    match outcome:
        case Done():
            return "is done"
        case Refused(code, message):
            return f"got CUDA error {code}: {message}"
        case Failed(_, message, trace):
            return f"failed: {message}" + (f"\n{trace}" if trace else "")
        case Died(exit_code, on_gpu):
            return f"{_ending(exit_code)} before it gave a result" + (", while it used the GPU" if on_gpu else "")
        case Hung(seconds, state, on_gpu):
            stopped = " (it is stopped by a signal)" if state in ("T", "t") else ""
            return f"gave no result within {seconds:g} s{stopped}" + (", it uses the GPU" if on_gpu else "")


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "closed its pipe"
    if exit_code < 0:
        try:
            return f"was ended by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"was ended by signal {-exit_code}"
    return f"exited with code {exit_code}"
