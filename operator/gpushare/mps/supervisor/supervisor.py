"""The supervisor of one MPS pod: one thread for each GPU that daemon.json gives to its share.

Guarantees: a GPU whose daemon hangs holds up no other; told to end, it takes no new client at once, ends each daemon
when its last client has gone, and returns when all have ended. It makes no decision itself: `decision` does, per GPU.
"""

import logging
import threading
from functools import partial
from pathlib import Path

from gpushare.mps.files import read_model
from gpushare.mps.layout import GpuDir, gpu_dirs
from gpushare.mps.supervisor.decision import POLL_SECONDS
from gpushare.mps.supervisor.gpu_supervisor import GpuSupervisor
from gpushare.mps.wire import DaemonWanted
from gpushare.nvml.types import Nvml

LOG = logging.getLogger(__name__)
SCAN_SECONDS = 0.5
"""How soon a new or changed daemon.json is seen; a scan is a few stat calls."""


class Supervisor:
    """`remark`: told of every daemon that is ready. `poll_seconds`: the longest pause between looks at a GPU."""

    def __init__(
        self,
        share: str,
        root: Path,
        bin_dir: Path | None,
        nvml: Nvml,
        remark: str = "",
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._share = share
        self._root = root
        self._supervise = partial(
            GpuSupervisor,
            share=share,
            bin_dir=bin_dir,
            nvml=nvml,
            remark=remark,
            poll_seconds=poll_seconds,
        )
        self._leaving = threading.Event()
        self._workers: dict[str, tuple[GpuSupervisor, threading.Thread]] = {}
        self._changed: dict[str, int] = {}

    def leave(self) -> None:
        """Let every daemon end as soon as it has no client; may be called from a signal handler."""
        self._leaving.set()

    def run(self) -> None:
        """Until `leave` is called and every daemon has ended."""
        while not self._leaving.is_set():
            self._scan()
            self._leaving.wait(SCAN_SECONDS)
        LOG.info("leaving: no new clients; waiting until every daemon is idle")
        for worker, _ in self._workers.values():
            worker.wake()
        for _, thread in self._workers.values():
            thread.join()

    def _scan(self) -> None:
        for gpu in gpu_dirs(self._root):
            self._forget_ended(gpu.uuid)
            changed = _changed_at(gpu)
            if changed == self._changed.get(gpu.uuid):
                continue
            self._changed[gpu.uuid] = changed
            if gpu.uuid in self._workers:
                self._workers[gpu.uuid][0].wake()
            elif self._is_ours(gpu):
                self._start(gpu)

    def _forget_ended(self, uuid: str) -> None:
        """A GPU whose thread has ended is looked at anew: it may have been given back in that moment."""
        if uuid in self._workers and not self._workers[uuid][1].is_alive():
            del self._workers[uuid], self._changed[uuid]

    def _is_ours(self, gpu: GpuDir) -> bool:
        read = read_model(gpu.wanted, DaemonWanted)
        return read.value is not None and read.value.share == self._share

    def _start(self, gpu: GpuDir) -> None:
        worker = self._supervise(gpu, leaving=self._leaving)
        thread = threading.Thread(target=worker.run, name=gpu.uuid, daemon=True)
        self._workers[gpu.uuid] = worker, thread
        thread.start()


def _changed_at(gpu: GpuDir) -> int:
    """When daemon.json was replaced last, in nanoseconds; 0: it is not there."""
    try:
        return gpu.wanted.stat().st_mtime_ns
    except OSError:
        return 0
