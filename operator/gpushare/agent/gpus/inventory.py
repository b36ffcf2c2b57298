"""The node's GPUs as NVML shows them, read every few seconds.

Guarantees: a GPU that is lost or hangs holds up no other. A process whose command line cannot be read, or hangs whoever
reads it, loses no GPU: it has no name here. A UUID that NVML lists twice is read by neither: which device node is its
own is not known, so what was known stays and grows old. So it is with a GPU that NVML describes as none can be, or
does not describe at all.
`seen_at` is taken before NVML is asked, so a view shows all that happened before. A GPU that was seen once stays
listed, as lost, until this process ends: its share has to report it.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.gpus.view import LOWEST_CLIENT_CEILING, DriverVersions, GpuView
from gpushare.agent.process.processes import read_words
from gpushare.api.compute_mode import ComputeMode
from gpushare.api.gpunode import Gpu, Uuid
from gpushare.messages.log_on_change import LogOnChange
from gpushare.nvml.types import GpuInfo, GpuList, GpuLostError, GpuProcesses, Nvml, NvmlError

LOG = logging.getLogger(__name__)
CALL_SECONDS = 5.0
"""NVML answers within milliseconds; a driver that takes this long has lost the GPU or is being unloaded."""


class Inventory:
    def __init__(
        self,
        nvml: Nvml,
        clock: Callable[[], float],
        proc: Path = Path("/proc"),
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds. `call_seconds`: the time limit of each call into NVML."""
        self.views: Mapping[Uuid, GpuView] = {}
        """Replaced as a whole: who has read it keeps what it was."""
        self.driver: DriverVersions | None = None
        self.error = ""
        """Why NVML as a whole did not answer last time; empty: it did."""
        self._listed: frozenset[Uuid] | None = None
        """What NVML listed the last time; None: it was not asked, did not answer, or not all of that can be believed.
        """
        self._nvml = nvml
        self._clock = clock
        self._proc = proc
        self._call_seconds = call_seconds
        self._caller = BlockingCaller("NVML", call_seconds)
        self._proc_caller = BlockingCaller("command lines of processes on GPUs", call_seconds)
        self._callers: dict[Uuid, BlockingCaller] = {}
        self._modes_set: dict[Uuid, tuple[float, ComputeMode]] = {}
        """What NVML said after we set a GPU's mode, and when."""
        self._problems = LogOnChange(LOG)

    @property
    def client_ceiling(self) -> int:
        """MPS contexts on one GPU; before the first answer the number that every driver takes."""
        return self.driver.client_ceiling if self.driver else LOWEST_CLIENT_CEILING

    @property
    def simulated(self) -> bool:
        return self._nvml.simulated

    async def poll(self) -> None:
        """Reads every GPU once into `views`, `driver` and `error`. Does not raise when NVML fails."""
        try:
            listed = await self._caller.call(self._list_gpus)
        except (NvmlError, HungError) as error:
            self._problems.log("NVML does not answer: %s", error)
            self.error = str(error)
            listed = GpuList([view.info for view in self.views.values()])
            unusable: dict[Uuid, str] = {}
            self._listed = None
        else:
            unusable = _unusable(listed.infos)
            known = not unusable and not listed.unreadable
            self._listed = frozenset(info.uuid for info in listed.infos) if known else None
            self._note([*unusable.values(), *listed.unreadable])
        described = {info.uuid for info in listed.infos}
        missing = {uuid: view for uuid, view in self.views.items() if uuid not in described}
        if not listed.unreadable:  # else each of them may be the one that NVML does not describe: its view grows old
            missing = {uuid: replace(view, lost=True) for uuid, view in missing.items()}
        kept = missing | {uuid: self.views[uuid] for uuid in unusable.keys() & self.views.keys()}
        readings = [self._read(info) for info in listed.infos if info.uuid not in unusable]
        read = [view for view in await asyncio.gather(*readings) if view is not None]
        self.views = kept | {view.info.uuid: self._with_mode_set(view) for view in await self._with_commands(read)}

    def _note(self, problems: Iterable[str]) -> None:
        self.error = "; ".join(problems)
        if self.error:
            self._problems.log("%s", self.error)
        else:
            self._problems.clear()

    def absent(self, uuid: Uuid) -> bool:
        """Whether NVML lists the node's GPUs and this one is not among them: it is gone, or waits for a reset."""
        return self._listed is not None and uuid not in self._listed

    async def set_mode(self, uuid: Uuid, mode: ComputeMode) -> None:
        """Sets it; `views` has what NVML then says, so that nobody takes our own change for somebody else's. Errors:
        NvmlError, HungError.
        """
        self._modes_set[uuid] = await self._caller_of(uuid).call(self._set_mode_now, uuid, mode)
        if uuid in self.views:
            self.views = {**self.views, uuid: self._with_mode_set(self.views[uuid])}

    def _set_mode_now(self, uuid: Uuid, mode: ComputeMode) -> tuple[float, ComputeMode]:
        self._nvml.set_compute_mode(uuid, mode)
        return self._clock(), self._nvml.compute_mode(uuid)

    def _with_mode_set(self, view: GpuView) -> GpuView:
        """A reading that began before the mode was set may have the one before."""
        set_at, mode = self._modes_set.get(view.info.uuid, (view.seen_at, view.mode))
        return replace(view, mode=mode) if view.seen_at <= set_at else view

    async def mode(self, uuid: Uuid) -> ComputeMode:
        """Errors: NvmlError, HungError."""
        return await self._caller_of(uuid).call(self._nvml.compute_mode, uuid)

    def _list_gpus(self) -> GpuList:
        self.driver = DriverVersions(self._nvml.driver_version(), self._nvml.cuda_version())
        return self._nvml.gpus()

    async def _read(self, info: GpuInfo) -> GpuView | None:
        previous = self.views.get(info.uuid)
        try:
            view = await self._caller_of(info.uuid).call(self._read_now, info)
        except (GpuLostError, HungError) as error:
            if previous is None or not previous.lost:
                LOG.warning("GPU %s is lost: %s", info.uuid, error)
            return replace(previous, lost=True) if previous else _never_seen(info)
        except NvmlError as error:
            self._problems.log("GPU %s: %s", info.uuid, error, key=info.uuid)
            return previous
        self._problems.clear(info.uuid)
        return view

    async def _with_commands(self, views: Collection[GpuView]) -> list[GpuView]:
        """The views that were read now, with the names of their processes. In one call for all GPUs, since each call is
        a thread.
        """
        new = [view for view in views if not view.lost and view is not self.views.get(view.info.uuid)]
        pids = {view.info.uuid: {process.pid for process in view.processes.compute} for view in new}
        names = await self._commands({pid for of_gpu in pids.values() for pid in of_gpu})
        return [
            replace(view, commands={pid: names[pid] for pid in pids[view.info.uuid] & names.keys()})
            if view.info.uuid in pids
            else view
            for view in views
        ]

    async def _commands(self, wanted: Collection[int]) -> dict[int, str]:
        try:
            names = await self._proc_caller.call(lambda: {pid: self._command(pid) for pid in wanted}) if wanted else {}
        except HungError as error:
            self._problems.log("%s", error, key="commands")
            return {}
        self._problems.clear("commands")
        return names

    def _read_now(self, info: GpuInfo) -> GpuView:
        seen_at = self._clock()
        processes = self._nvml.processes(info.uuid)
        free_mib = self._nvml.free_memory_mib(info.uuid)
        mode, utilization = self._nvml.compute_mode(info.uuid), self._nvml.utilization(info.uuid)
        return GpuView(info, mode, processes, seen_at, utilization=utilization, free_mib=free_mib)

    def _command(self, pid: int) -> str:
        """The program's file name, from its command line: /proc/PID/comm is cut at 15 characters and can be set."""
        try:
            words = read_words(pid, self._proc)
        except OSError:
            return ""
        # A terminal may show the name, and who chose it may choose any characters.
        paths = [re.sub(r"[^ -~]", "?", Path(word).name) for word in words]
        return next((path for path in paths if path.startswith("nvidia-cuda-mps")), paths[0] if paths else "")

    def _caller_of(self, uuid: Uuid) -> BlockingCaller:
        return self._callers.setdefault(uuid, BlockingCaller(f"NVML {uuid}", self._call_seconds))


def described(info: GpuInfo, mode: ComputeMode) -> Gpu:
    """The GPU as a GpuNode has it. ValidationError: no GPU can be so."""
    return Gpu(
        uuid=info.uuid,
        index=info.index,
        minor=info.minor,
        product=info.product[:64],
        memory_mib=info.memory_mib,
        sms=info.sms,
        compute_capability=info.compute_capability,
        numa_node=info.numa_node,
        compute_mode=mode,
        mig_enabled=info.mig_enabled,
    )


def _unusable(listed: Collection[GpuInfo]) -> dict[Uuid, str]:
    """The GPUs that no container can be given, each with a sentence. Bounds are the API's: a GpuNode holds what is
    usable.
    """
    unusable = {info.uuid: why for info in listed if (why := _implausible(info))}
    many = Counter(info.uuid for info in listed)
    return unusable | {uuid: f"NVML lists more than one GPU as {uuid}" for uuid, count in many.items() if count > 1}


def _implausible(info: GpuInfo) -> str:
    """What of NVML's description no GPU has; empty: it can be true."""
    try:
        described(info, ComputeMode.DEFAULT)
    except ValidationError as error:
        wrong = error.errors()[0]
        return f"NVML describes GPU {info.uuid[:48]} as none can be: {wrong['loc'][0]} is {str(wrong['input'])[:48]}"
    if info.memory_mib < 1:
        return f"NVML describes GPU {info.uuid} as none can be: it has no memory"
    return ""


def _never_seen(info: GpuInfo) -> GpuView:
    return GpuView(info, ComputeMode.DEFAULT, GpuProcesses((), ()), seen_at=0.0, lost=True)
