"""seen.json: what an agent leaves to its successor about each GPU, and what that one reads there.

Guarantees: what an earlier agent left is read before anything is written over it. A note is at most NOTE_SECONDS older
than the agent's end, and younger where the GPU's clients or counts had just changed. Loses: what was on the node's
disk when that reboots, which ends all clients anyway.
"""

import logging
from pathlib import Path

from gpushare.api.gpunode import Uuid
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import gpu_dir, gpu_dirs
from gpushare.mps.wire import DaemonState
from gpushare.node import processes
from gpushare.node.absence import Client, Seen, clients_of, seen
from gpushare.node.ending import Asked, AskedFile
from gpushare.node.usage import Reading

LOG = logging.getLogger(__name__)
NOTE_SECONDS = 5.0


class Handover:
    def __init__(self, root: Path, proc: Path = Path("/proc")) -> None:
        """`root`: of the GPUs' directories."""
        self._root = root
        self._proc = proc
        self._noted: dict[Uuid, Seen] = {}
        self._left: dict[Uuid, Seen] = {}
        for directory in gpu_dirs(root):
            read = read_model(directory.seen, Seen)
            if read.value is not None:
                self._left[directory.uuid] = read.value
            elif not read.absent:
                LOG.warning("what happened while no agent ran is not known: %s", read.reason)

    def take(self, uuid: Uuid) -> Seen | None:
        """What an earlier agent left about the GPU, once; None also where the GPU was given back since."""
        left = self._left.pop(uuid, None)
        return left if gpu_dir(self._root, uuid).seen.exists() else None

    def ended(self, uuid: Uuid, clients: tuple[Client, ...]) -> list[Client]:
        """Those that have ended although no agent has asked the GPU's daemon for it."""
        read = read_model(gpu_dir(self._root, uuid).endings, AskedFile)
        asked: set[tuple[int, int]] = {_key(entry) for entry in (read.value.asked if read.value else ())}
        gone = (it for it in clients if processes.read_start_time(it.pid, self._proc) != it.started)
        return [it for it in gone if _key(it) not in asked]

    def note(self, uuid: Uuid, state: DaemonState, reading: Reading | None, at: float) -> None:
        """Writes down what is news, or due. `reading` None: the clients are not known now. `at`: seconds since 1970."""
        noted = self._noted.get(uuid)
        if reading is None and noted is None:
            return  # an earlier agent knew more
        clients = clients_of(reading) if reading is not None else noted.clients if noted is not None else ()
        found = seen(state, clients, at)
        if noted is not None and found == noted.model_copy(update={"at": at}) and 0 <= at - noted.at < NOTE_SECONDS:
            return
        try:
            write_model(gpu_dir(self._root, uuid).seen, found)
        except OSError as error:
            LOG.warning("GPU %s: what was seen of it could not be noted for the next agent: %s", uuid, error)
        self._noted[uuid] = found


def _key(process: Client | Asked) -> tuple[int, int]:
    return process.pid, process.started
