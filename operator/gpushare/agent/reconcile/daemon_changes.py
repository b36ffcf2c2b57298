"""Notices between two ticks what a supervisor or an attach broker reports, so that no container waits for the next tick
and no gate stays open until it.

Guarantees: a heartbeat, an arrival or a refusal alone is no change.
"""

from collections.abc import Iterable

from gpushare.mps.files import ModelFiles
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import BrokerState, DaemonState

Said = tuple[object, ...]
"""The part of a file that decides whether the GPU takes clients."""


class DaemonChanges:
    def __init__(self, files: ModelFiles) -> None:
        self._files = files
        self._seen: dict[GpuDir, tuple[Said | None, Said | None]] = {}

    def any(self, directories: Iterable[GpuDir]) -> bool:
        """Whether one of them says something else than at the last call, or was not among them then."""
        before, read = self._seen, self._files.read
        self._seen = {
            gpu: (_daemon(read(gpu.state, DaemonState).value), _broker(read(gpu.broker_state, BrokerState).value))
            for gpu in directories
        }
        return any(before.get(gpu) != said for gpu, said in self._seen.items())


def _daemon(state: DaemonState | None) -> Said | None:
    """What a supervisor says; None: there is no such file, or it cannot be read."""
    if state is None:
        return None
    return state.share, state.reason, state.stopped, state.server_pid, state.in_force


def _broker(state: BrokerState | None) -> Said | None:
    """What a broker says; None as for a supervisor."""
    return None if state is None else (state.listening, state.problem)
