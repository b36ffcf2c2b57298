"""The supervisor of one MPS pod: one thread for each GPU that daemon.json assigns to its share.

Guarantees: a daemon that hangs delays no other GPU. After `end_when_idle`, new clients are refused at once, each daemon
ends when its last client has gone, and `run` returns when all have ended. Decisions are made per GPU, in `decision`.
"""

import logging
import os
import select
import threading
import weakref
from functools import partial
from pathlib import Path

from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.files import read_model
from gpushare.mps.layout import GpuDir, gpu_dirs
from gpushare.mps.protocol import ProtocolSetting
from gpushare.mps.supervisor.decision import POLL_SECONDS
from gpushare.mps.supervisor.gather import REREAD_SECONDS
from gpushare.mps.supervisor.gpu_supervisor import GpuSupervisor
from gpushare.mps.wire import DesiredDaemon
from gpushare.nvml.types import Nvml
from gpushare.process import users
from gpushare.process.threads import start_thread

LOG = logging.getLogger(__name__)
SCAN_SECONDS = 0.5
"""The time between two scans for new or changed daemon.json files; a scan is a few stat calls."""


class Supervisor:
    """`remark`: the message of every daemon that is ready. `protocol`: what its daemons may speak. `broker_uid`: whom
    the attach broker runs as.

    `poll_seconds`: the longest time between two observations of a GPU; `reread_seconds`: between two readings of its
    limits.
    """

    def __init__(
        self,
        share: str,
        root: Path,
        bin_dir: Path | None,
        nvml: Nvml,
        remark: str = "",
        poll_seconds: float = POLL_SECONDS,
        reread_seconds: float = REREAD_SECONDS,
        protocol: ProtocolSetting = ProtocolSetting.V2,
        broker_uid: int = users.BROKER,
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
            reread_seconds=reread_seconds,
            protocol=protocol,
            broker_uid=broker_uid,
        )
        self._leaving = threading.Event()
        self._asked = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """A signal handler must not take a lock that the code which it interrupts may hold, as an Event has one."""
        weakref.finalize(self, os.close, self._asked).atexit = False
        self._workers: dict[str, tuple[GpuSupervisor, threading.Thread]] = {}
        self._changed: dict[str, int] = {}
        self._problems = LogOnChange(LOG)

    def end_when_idle(self) -> None:
        """End every daemon as soon as it has no client. May be called from a signal handler."""
        os.eventfd_write(self._asked, 1)

    def run(self) -> None:
        """Runs until `end_when_idle` is called and every daemon has ended."""
        seconds = 0.0
        while not select.select([self._asked], [], [], seconds)[0]:
            seconds = SCAN_SECONDS
            try:
                self._scan()
                self._problems.clear()
            except OSError as error:  # such as no descriptor or thread being left: who serves is looked after
                self._problems.log("the GPUs' directories cannot be read, or a GPU not be taken up: %s", error)
        self._leaving.set()
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
            if gpu.uuid in self._workers:
                self._workers[gpu.uuid][0].wake()
            elif self._is_ours(gpu):
                self._start(gpu)
            self._changed[gpu.uuid] = changed

    def _forget_ended(self, uuid: str) -> None:
        """Scan a GPU anew once its thread has ended: it may have been assigned to us again at that moment."""
        if uuid in self._workers and not self._workers[uuid][1].is_alive():
            del self._workers[uuid], self._changed[uuid]

    def _is_ours(self, gpu: GpuDir) -> bool:
        read = read_model(gpu.wanted, DesiredDaemon)
        return read.value is not None and read.value.share == self._share

    def _start(self, gpu: GpuDir) -> None:
        worker = self._supervise(gpu, leaving=self._leaving)
        self._workers[gpu.uuid] = worker, start_thread(worker.run, name=gpu.uuid)


def _changed_at(gpu: GpuDir) -> int:
    """When daemon.json was last replaced, in nanoseconds; 0 if there is none."""
    try:
        return gpu.wanted.stat().st_mtime_ns
    except OSError:
        return 0
