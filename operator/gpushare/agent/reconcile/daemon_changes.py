"""Notices between two ticks what a supervisor or an attach broker reports, so that no container waits for the next tick
and no gate stays open until it.

Guarantees: a heartbeat, an arrival or a refusal alone is no change. A file is read only after it was replaced.
"""

from collections.abc import Iterable
from pathlib import Path

from gpushare.mps.files import FileVersion, file_version, read_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import BrokerState, DaemonState, WireModel

Said = tuple[object, ...]
"""As much of a file as decides whether the GPU takes clients."""


class DaemonChanges:
    def __init__(self) -> None:
        self._seen: dict[Path, tuple[FileVersion | None, Said | None]] = {}

    def any(self, directories: Iterable[GpuDir]) -> bool:
        """Whether one of them says something else than at the last call, or was not among them then."""
        files = [file for gpu in directories for file in ((gpu.state, DaemonState), (gpu.broker_state, BrokerState))]
        before, self._seen = self._seen, {}
        changed = False
        for path, model in files:
            version, known = file_version(path), before.get(path)
            said = known[1] if known is not None and known[0] == version else _say(path, model)
            changed |= known is None or known[1] != said
            self._seen[path] = version, said
        return changed


def _say(path: Path, model: type[WireModel]) -> Said | None:
    """None: there is no such file, or it cannot be read."""
    found = read_model(path, model).value
    if isinstance(found, DaemonState):
        return found.share, found.reason, found.stopped, found.server_pid, found.in_force
    if isinstance(found, BrokerState):
        return found.listening, found.problem
    return None
