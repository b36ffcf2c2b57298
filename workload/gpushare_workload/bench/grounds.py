"""How clients come to share the GPU in the mode that is measured: by a daemon of our own, or as it is found here."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from gpushare_workload.bench.own_daemon import OwnDaemon
from gpushare_workload.bench.plan import Mode, Pass

DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - CUDA's own default, only looked at
PIPE = "CUDA_MPS_PIPE_DIRECTORY"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


class Ground(Protocol):
    def modes(self) -> Sequence[Mode]:
        """Those that can be measured here."""
        ...

    def ready_for(self, one: Pass) -> AbstractContextManager[Mapping[str, str]]:
        """What the clients of a pass need in their environment."""
        ...

    def describe(self) -> str: ...


class Owned:
    def __init__(self, daemon: OwnDaemon) -> None:
        self._daemon = daemon

    def modes(self) -> Sequence[Mode]:
        return tuple(Mode)

    @contextmanager
    def ready_for(self, one: Pass) -> Iterator[Mapping[str, str]]:
        if one.threads is None:
            yield self._daemon.without_mps()
            return
        with self._daemon.serving(one.threads) as environment:
            yield environment

    def describe(self) -> str:
        return "a control daemon of its own, while MPS is measured"


class Found:
    """A pod of a share, or a machine as somebody set it up: nothing is started here, and nothing changed."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._control = Path(environment.get(PIPE) or DEFAULT_PIPE_DIRECTORY) / "control"
        self._mps = self._control.exists()

    def modes(self) -> Sequence[Mode]:
        """Who can reach a control daemon is its client, and cannot be measured without it."""
        return tuple(mode for mode in Mode if mode is Mode.STREAMS or mode.under_mps == self._mps)

    @contextmanager
    def ready_for(self, one: Pass) -> Iterator[Mapping[str, str]]:
        """A client's own variable only tightens what the daemon gives it."""
        capped = one.threads is not None and one.threads < 100
        yield {THREADS: f"{one.threads:g}"} if capped else {}

    def describe(self) -> str:
        return f"as found: {f'the control daemon at {self._control.parent}' if self._mps else 'no control daemon'}"


def chosen(wanted: Sequence[Mode] | None, ground: Ground) -> tuple[Mode, ...]:
    """The modes to measure: those asked for, else all that are possible. Raises ValueError naming one that is not."""
    possible = ground.modes()
    for mode in wanted or ():
        if mode not in possible:
            raise ValueError(
                f"--modes {mode.value}: cannot be measured here ({ground.describe()}); possible are "
                f"{', '.join(one.value for one in possible)}, and all with --own-daemon on a GPU that nobody uses"
            )
    return tuple(wanted or possible)
