"""How clients get to share the GPU in the measured mode: by a daemon of the benchmark, or by the existing setup."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from gpushare_workload.bench.daemon.own_daemon import OwnDaemon
from gpushare_workload.bench.plan import Pass, SharingMode
from gpushare_workload.gpus.mps import limited, reachable_daemon


class MpsSetup(Protocol):
    """Prepares the GPU for a pass."""

    def modes(self) -> Sequence[SharingMode]:
        """The modes that can be measured here."""
        ...

    def ready_for(self, one: Pass) -> AbstractContextManager[Mapping[str, str]]:
        """The environment variables that the clients of a pass need."""
        ...

    def describe(self) -> str:
        """For people, and for the document."""
        ...


class OwnDaemonSetup:
    """A private MPS daemon serves while an MPS mode is measured."""

    def __init__(self, daemon: OwnDaemon) -> None:
        self._daemon = daemon

    def modes(self) -> Sequence[SharingMode]:
        return tuple(SharingMode)

    @contextmanager
    def ready_for(self, one: Pass) -> Iterator[Mapping[str, str]]:
        if one.threads is None:
            yield self._daemon.without_mps()
            return
        with self._daemon.serving(one.threads) as environment:
            yield environment

    def describe(self) -> str:
        return "a private MPS daemon, while MPS is measured"


class ExistingSetup:
    """A pod of a share, or a machine that somebody has set up. Nothing is started or changed."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._daemon = reachable_daemon(environment)

    def modes(self) -> Sequence[SharingMode]:
        """A process that can reach an MPS daemon is its client, so time-slicing cannot be measured here."""
        under_mps = self._daemon is not None
        return tuple(mode for mode in SharingMode if mode is SharingMode.STREAMS or mode.under_mps == under_mps)

    @contextmanager
    def ready_for(self, one: Pass) -> Iterator[Mapping[str, str]]:
        yield limited(one.threads)

    def describe(self) -> str:
        return f"existing setup: {f'the MPS daemon at {self._daemon}' if self._daemon else 'no MPS daemon'}"


def chosen(requested: Sequence[SharingMode] | None, setup: MpsSetup) -> tuple[SharingMode, ...]:
    """The modes to measure: the requested ones, else all possible ones. Raises ValueError naming an impossible one."""
    possible = setup.modes()
    for mode in requested or ():
        if mode not in possible:
            raise ValueError(
                f"--modes {mode.value}: cannot be measured here ({setup.describe()}); possible are "
                f"{', '.join(one.value for one in possible)}, and all with --own-daemon on a GPU that nobody uses"
            )
    return tuple(requested or possible)
