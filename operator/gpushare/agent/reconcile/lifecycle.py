"""Takes GPUs, keeps their limits and gives them back, as `assignments` plans it.

Guarantees: calls into the driver run beside the tick, one action per GPU at a time, so a hanging GPU holds up only
itself. An action is repeated until it succeeds, and repeating is safe; `advance` says what it waits for. A GPU is given
back only once its MPS daemon has ended: `stop` in daemon.json is written first and that file is removed last, so an
agent that dies in between continues where the last one was.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from gpushare.agent.aio.blocking import HungError
from gpushare.agent.gpus.cdi import Gate
from gpushare.agent.gpus.inventory import Inventory
from gpushare.agent.gpus.view import GpuView
from gpushare.agent.process.processes import read_words
from gpushare.agent.reconcile import daemon_files, whole_gpus
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.decision import GpuAssessment
from gpushare.agent.reconcile.whole_gpus import WholeGpu
from gpushare.api.compute_mode import ComputeMode, ComputeModePolicy
from gpushare.api.gpunode import ForeignHolder, Uuid
from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.layout import GpuDir, gpu_dir
from gpushare.mps.wire import DaemonState, DesiredDaemon
from gpushare.nvml.types import NvmlError

LOG = logging.getLogger(__name__)

SILENT_SECONDS = 15.0
"""A supervisor that wrote nothing for so long does not run: it writes every 2 s, also while it waits for clients."""
RETRY_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class StopEvidence:
    """Whether an MPS daemon has ended. `stop_age`: seconds since we saw that it is asked to; `now`: CLOCK_BOOTTIME."""

    state: DaemonState | None
    stop_age: float
    control_alive: bool
    server_shown: bool
    """NVML shows the server's context."""
    now: float


def waits_for(evidence: StopEvidence) -> str | None:
    """A sentence: why the GPU cannot be given back yet; None: its MPS daemon has ended."""
    state = evidence.state
    if state is not None and state.stopped:
        return None
    silent_for = evidence.stop_age if state is None else min(evidence.stop_age, evidence.now - state.heartbeat)
    if silent_for < SILENT_SECONDS:
        return "waiting for the MPS pod to end the daemon"
    if evidence.control_alive or evidence.server_shown:
        return "the MPS pod is silent but its daemon still runs: end that pod on this node"
    return None


def wanted_mode(planned: GpuPlan, state: DaemonState | None) -> ComputeMode:
    """Pure. Of a share with a queue containers hold slots while its MPS pod is replaced: as long as there is no MPS
    daemon, a process that starts there would find none and take the GPU for itself, past every limit.
    """
    between = planned.has_queue and state is not None and state.stopped
    return ComputeMode.PROHIBITED if between else ComputeMode.EXCLUSIVE_PROCESS


def leaves_waiting(item: GpuAssessment) -> str:
    """A sentence: what a GPU that the operator has released waits for; empty: it is not released. Pure."""
    if item.plan.stage is not GpuStage.LEAVE:
        return ""
    slots = ", ".join(str(slot) for slot in sorted(item.held))
    if item.plan.resource:
        waits = "a container has it" if slots else "the kubelet has not confirmed that no container has it"
    elif slots:
        waits = f"containers hold its slots {slots}"
    else:
        waits = "the kubelet has not confirmed that its slots are free"
    return f"released by the operator, but {waits}"


def remove(
    directory: GpuDir, rmtree: Callable[[Path], object] = shutil.rmtree, *, keeps_original_mode: bool = False
) -> None:
    """Removes a GPU's directory, daemon.json last. `rmtree`: as shutil's. OSError: try again.

    `keeps_original_mode`: the file with the mode found stays, with the directory, for `Lifecycle.put_back`.
    """
    if not directory.path.is_dir():
        return
    for entry in directory.path.iterdir():
        if entry == directory.wanted or (keeps_original_mode and entry == directory.original_mode):
            continue
        if entry.is_dir() and not entry.is_symlink():
            rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
    directory.wanted.unlink(missing_ok=True)
    if not keeps_original_mode:
        directory.path.rmdir()


class Lifecycle:
    def __init__(
        self,
        root: Path,
        inventory: Inventory,
        gate: Gate,
        clock: Callable[[], float],
        changed: Callable[[], None],
        proc: Path = Path("/proc"),
        modes: ComputeModePolicy = ComputeModePolicy.MANAGE,
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds. `changed`: called when an action has ended."""
        self._root = root
        self._inventory = inventory
        self._gate = gate
        self._clock = clock
        self._changed = changed
        self._proc = proc
        self._manages_modes = modes is ComputeModePolicy.MANAGE
        self._actions: dict[Uuid, asyncio.Task[None]] = {}
        self._failed: dict[Uuid, str] = {}
        """Why the last action of each GPU failed, until one succeeds or none is needed."""
        self._retry_at: dict[Uuid, float] = {}
        self._stopping: dict[Uuid, float] = {}
        """The time since which each daemon is known to be asked to end; a file's time would move with the time of
        day."""
        self._problems = LogOnChange(LOG)

    def advance(self, item: GpuAssessment, foreign: Sequence[ForeignHolder] | None) -> str:
        """Takes or starts the next step for one GPU. Never waits for the driver. Returns what the GPU waits for, or why
        its last step failed, for the status; empty: nothing.

        `foreign`: pods that hold whole GPUs of this node; None: not known yet. No GPU is taken beside them, even if the
        operator, which sees them later, has assigned it.
        """
        uuid = item.plan.uuid
        try:
            waits = self._advance(item, foreign)
            self._problems.clear(uuid)
        except OSError as error:
            self._problems.log("GPU %s: %s", uuid, error, key=uuid)
            return f"its files cannot be written: {error}"
        return waits or self._failed.get(uuid, "")

    def put_back(self, directory: GpuDir) -> None:
        """Restores the mode of a GPU that is not taken, if it was changed, and removes its directory. Does nothing as
        long as NVML does not reach a GPU whose mode was changed. Never waits.
        """
        if not self._cannot_restore(directory):
            self._act(directory.uuid, "putting back", partial(self._put_back, directory))

    async def _put_back(self, directory: GpuDir) -> None:
        await self._restore_mode(directory)
        remove(directory)
        LOG.info("GPU %s, which no share has, is as it was found, and its directory is removed", directory.uuid)

    def _advance(self, item: GpuAssessment, foreign: Sequence[ForeignHolder] | None) -> str:
        planned, taken, view = item.plan, item.taken, self._inventory.views.get(item.plan.uuid)
        match planned.stage, taken:
            case GpuStage.TAKE, None:
                return self._take(planned, view, foreign)
            case GpuStage.STOP, DaemonFiles():
                return self._stop(taken, view)
            case GpuStage.STOP, WholeGpu():
                self._gate.close(taken.uuid)
                remove(gpu_dir(self._root, taken.uuid))
                LOG.info("GPU %s is given back whole by GpuShare %s", taken.uuid, taken.share)
            case ((GpuStage.SERVE | GpuStage.KEEP | GpuStage.DRAIN | GpuStage.LEAVE), WholeGpu()):
                self._failed.pop(taken.uuid, None)  # nothing is left to do
                return leaves_waiting(item)
            case ((GpuStage.SERVE | GpuStage.KEEP | GpuStage.DRAIN | GpuStage.LEAVE), DaemonFiles()):
                self._keep(planned, taken, view)
                return leaves_waiting(item)
        return ""

    def forget(self, present: Collection[Uuid]) -> None:
        """Drops what is known of all GPUs but `present`."""
        self._failed = {uuid: error for uuid, error in self._failed.items() if uuid in present}
        self._stopping = {uuid: since for uuid, since in self._stopping.items() if uuid in present}

    async def close(self) -> None:
        for task in self._actions.values():
            task.cancel()
        await asyncio.gather(*self._actions.values(), return_exceptions=True)

    def _take(self, planned: GpuPlan, view: GpuView | None, foreign: Sequence[ForeignHolder] | None) -> str:
        """What it waits for."""
        if planned.limits is None and not planned.resource:
            return f"GpuShare {planned.share} is not known here yet"
        if view is None or view.lost:
            return "NVML does not reach this GPU"
        if foreign is None:
            return "it is not known yet whether a pod of this node holds whole GPUs"
        if foreign:
            # The share repeats it, which other tenants may read.
            return f"a pod of this node holds {foreign[0].resource} (GpuNode.status.foreignHolders)"
        if planned.limits is None:
            self._take_whole(WholeGpu(uuid=planned.uuid, share=planned.share, resource=planned.resource))
            return ""
        desired = DesiredDaemon(
            uuid=planned.uuid,
            share=planned.share,
            limits=planned.limits,
            shows_grant=planned.shows_grant,
            has_classes=planned.has_classes,
        )
        self._act(planned.uuid, "taking the GPU", partial(self._take_now, desired))
        return ""

    def _take_whole(self, gpu: WholeGpu) -> None:
        """Its compute mode is left as it is; one that an earlier agent set for a share is restored first."""
        directory = gpu_dir(self._root, gpu.uuid)
        if gpu.uuid in self._actions:
            return  # it was being taken for another share, whose daemon.json may still come
        if directory.original_mode.exists():
            self.put_back(directory)
            return
        whole_gpus.write(self._root, gpu)
        LOG.info("GPU %s is given whole, as %s of GpuShare %s", gpu.uuid, gpu.resource, gpu.share)
        self._changed()

    async def _take_now(self, desired: DesiredDaemon) -> None:
        directory = gpu_dir(self._root, desired.uuid)
        daemon_files.prepare(directory)
        if self._manages_modes:
            await self._set_mode(desired.uuid, directory, ComputeMode.EXCLUSIVE_PROCESS)
        daemon_files.write_wanted(directory, desired)
        LOG.info("GPU %s is taken for GpuShare %s", desired.uuid, desired.share)

    def _keep(self, planned: GpuPlan, item: DaemonFiles, view: GpuView | None) -> None:
        if not daemon_files.is_prepared(item.directory):
            daemon_files.prepare(item.directory)
        if planned.limits is not None and planned.limits != item.wanted.limits:
            daemon_files.write_wanted(item.directory, structs.replace(item.wanted, limits=planned.limits))
            LOG.info("GPU %s: limits of GpuShare %s are now %s", planned.uuid, planned.share, planned.limits)
        elif (planned.shows_grant, planned.has_classes) != (item.wanted.shows_grant, item.wanted.has_classes):
            wanted = structs.replace(item.wanted, shows_grant=planned.shows_grant, has_classes=planned.has_classes)
            daemon_files.write_wanted(item.directory, wanted)
            shown = "its grant" if planned.shows_grant else "all of it"
            has = "has a class" if planned.has_classes else "has no class"
            LOG.info("GPU %s: a container that starts sees %s as the GPU's memory, and %s", planned.uuid, shown, has)
        if view is None or view.lost or not self._manages_modes:
            return
        if view.mode is not (mode := wanted_mode(planned, item.state)):
            action = partial(self._set_mode, planned.uuid, item.directory, mode)
            self._act(planned.uuid, "setting the compute mode", action)
        else:
            self._failed.pop(planned.uuid, None)  # nothing is left to do: a call that hung may have set the mode

    def _stop(self, item: DaemonFiles, view: GpuView | None) -> str:
        """What it waits for."""
        uuid = item.wanted.uuid
        if not item.wanted.stop:
            self._stopping.pop(uuid, None)
            daemon_files.write_wanted(item.directory, structs.replace(item.wanted, stop=True))
            LOG.info("GPU %s: the daemon of GpuShare %s is asked to end", uuid, item.wanted.share)
            return ""
        server, now = item.state.server_pid if item.state else None, self._clock()
        shown = view is not None and server in {process.pid for process in view.processes.compute}
        waits = waits_for(
            StopEvidence(
                state=item.state,
                stop_age=now - self._stopping.setdefault(uuid, now),
                control_alive=self._is_daemon(item.state.control_pid if item.state else None),
                server_shown=shown and not (view is not None and view.lost),
                now=now,
            )
        )
        if waits is None:
            self._act(uuid, "giving the GPU back", partial(self._give_back, item))
        return waits or ""

    async def _give_back(self, item: DaemonFiles) -> None:
        """The share does not wait for a GPU that NVML does not reach: `put_back` restores its mode later."""
        later = self._cannot_restore(item.directory)
        if not later:
            await self._restore_mode(item.directory)
        self._gate.close(item.wanted.uuid)
        remove(item.directory, keeps_original_mode=later)
        rest = "; its compute mode is restored once NVML reaches it" if later else ""
        LOG.info("GPU %s is given back by GpuShare %s%s", item.wanted.uuid, item.wanted.share, rest)

    async def _set_mode(self, uuid: Uuid, directory: GpuDir, wanted: ComputeMode) -> None:
        """The mode found before is on disk first. Errors: NvmlError, HungError, OSError."""
        mode = await self._inventory.mode(uuid)
        daemon_files.write_original_mode(directory, mode)
        if mode is not wanted:
            await self._inventory.set_mode(uuid, wanted)

    def _cannot_restore(self, directory: GpuDir) -> bool:
        """Whether the GPU's mode was changed, and NVML does not reach the GPU now: it may have hung for a moment only,
        and has our mode still when it answers.
        """
        if not directory.original_mode.exists() or self._inventory.absent(directory.uuid):
            return False
        view = self._inventory.views.get(directory.uuid)
        return view is None or view.lost

    async def _restore_mode(self, directory: GpuDir) -> None:
        """Nothing to do for a GPU that is gone: the reset by which it comes back gives it the default mode. Errors:
        NvmlError, HungError.
        """
        original = daemon_files.original_mode(directory)
        if original is not None and not self._inventory.absent(directory.uuid):
            await self._inventory.set_mode(directory.uuid, original)

    def _is_daemon(self, pid: int | None) -> bool:
        """Whether that process is an MPS daemon: the PID may have been reused."""
        try:
            words = read_words(pid, self._proc) if pid is not None else []
        except OSError:
            return False
        return any("nvidia-cuda-mps-control" in word for word in words)

    def _act(self, uuid: Uuid, doing: str, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if uuid in self._actions or self._clock() < self._retry_at.get(uuid, 0.0):
            return

        async def run() -> None:
            try:
                await action()
                self._failed.pop(uuid, None)
            except (NvmlError, HungError, OSError) as error:
                LOG.warning("%s %s failed, trying again: %s", doing, uuid, error)
                self._failed[uuid] = f"{doing} failed: {error}"
                self._retry_at[uuid] = self._clock() + RETRY_SECONDS
            finally:
                del self._actions[uuid]
                self._changed()

        self._actions[uuid] = asyncio.create_task(run())
