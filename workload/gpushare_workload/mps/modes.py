"""The ways of sharing a GPU that the benchmark measures, and the environment that puts a process into each.

A CUDA program reads its environment once: it is the client of an MPS daemon if it can reach one by it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Protocol

DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - CUDA's default; only its existence is checked
PIPE = "CUDA_MPS_PIPE_DIRECTORY"
LOG = "CUDA_MPS_LOG_DIRECTORY"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


class SharingMode(StrEnum):
    """How N clients share the GPU."""

    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MPS_EQUAL_CAPS = "mps-equal-caps"
    STREAMS = "streams"

    @property
    def under_mps(self) -> bool:
        """Whether the clients are MPS clients. `streams` is one process."""
        return self in (SharingMode.MPS, SharingMode.MPS_EQUAL_CAPS)


def reachable_daemon(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The pipe directory of the MPS daemon whose client a CUDA program of this environment is; None: it is none's."""
    directory = Path(environment.get(PIPE) or DEFAULT_PIPE_DIRECTORY)
    return directory if (directory / "control").exists() else None


def limited(percent: float | None) -> dict[str, str]:
    """The environment of a child that may use `percent` of the SMs; of one without a further limit for 100 and None.

    The variable can only tighten the daemon's limit.
    """
    return {} if percent is None or percent >= 100 else {THREADS: f"{percent:g}"}


class MpsSetup(Protocol):
    """Prepares the GPU for processes that share it in one mode."""

    def modes(self) -> Sequence[SharingMode]:
        """The modes that can be measured here."""
        ...

    def ready_for(self, threads: float | None) -> AbstractContextManager[Mapping[str, str]]:
        """The environment variables of the processes. `threads`: percent of the SMs of each; None without MPS."""
        ...

    def describe(self) -> str:
        """The setup as a clause, for people and for the document."""
        ...


class ExistingSetup:
    """A pod of a share, or a machine that somebody has set up. Nothing is started or changed."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._daemon = reachable_daemon(environment)

    def modes(self) -> Sequence[SharingMode]:
        """A process that can reach an MPS daemon is its client, so time-slicing cannot be measured here."""
        under_mps = self._daemon is not None
        return tuple(mode for mode in SharingMode if mode is SharingMode.STREAMS or mode.under_mps == under_mps)

    @contextmanager
    def ready_for(self, threads: float | None) -> Iterator[Mapping[str, str]]:
        yield limited(threads)

    def describe(self) -> str:
        return f"existing setup: {f'the MPS daemon at {self._daemon}' if self._daemon else 'no MPS daemon'}"


def chosen(requested: Sequence[SharingMode] | None, setup: MpsSetup) -> tuple[SharingMode, ...]:
    """The modes to measure: the requested ones, else all possible ones. Raises ValueError naming an impossible one."""
    possible = setup.modes()
    for mode in requested or ():
        if mode not in possible:
            raise ValueError(
                f"--modes {mode.value}: cannot be measured here ({setup.describe()}); possible are "
                f"{', '.join(each.value for each in possible)}, and all with --own-daemon on a GPU that nobody uses"
            )
    return tuple(requested or possible)
