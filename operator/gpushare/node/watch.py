"""Observation, judgement and what follows of it, as the agent's loop runs them: look, judge, act."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from gpushare.api.gpunode import Finding, ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.kube.client import Object
from gpushare.node.daemons import OnDisk
from gpushare.node.findings import Findings, Judgement
from gpushare.node.holdings import ContainerName, Place
from gpushare.node.inventory import GpuView
from gpushare.node.lane import HungError
from gpushare.node.observation import Observation, Taken
from gpushare.node.usage import Claimed, Listed, Reading

LOG = logging.getLogger(__name__)


class Enforcer(Protocol):
    """What follows of a judgement; see enforcement.Enforcement."""

    def ended(self, uuid: Uuid, process: Listed) -> bool:
        """Whether the contexts of a process were ended through its GPU's daemon."""
        ...

    def act(self, judgement: Judgement, terminating: Collection[ShareName]) -> None:
        """`terminating`: the shares whose policy is to end offenders. Never waits."""
        ...


class Watch:
    def __init__(self, clock: Callable[[], float], enforcer: Enforcer, proc: Path = Path("/proc")) -> None:
        """`clock`: CLOCK_BOOTTIME seconds."""
        self._clock = clock
        self._enforcer = enforcer
        self._observation = Observation(clock, enforcer.ended, proc)
        self._findings: Findings | None = None
        self._told = ""

    @property
    def readings(self) -> dict[Uuid, Reading]:
        return self._observation.readings

    def findings(self) -> list[Finding] | None:
        """None: what an earlier agent told is not known yet, so it stands."""
        return None if self._findings is None else self._findings.told()

    async def look(
        self,
        views: Mapping[Uuid, GpuView],
        on_disk: Mapping[Uuid, OnDisk],
        pods: Collection[Object],
        shares: Mapping[ShareName, GpuShare],
        places: Mapping[ContainerName, Place],
        claimed: Claimed,
        before: Callable[[], Sequence[Finding]],
    ) -> None:
        """`places`: where the containers' slots and claims are. `before`: the findings that the API holds; asked for at
        the first look.
        """
        if self._findings is None:
            self._findings = Findings(before(), self._clock())
        taken = {uuid: Taken(item.wanted.share, item.server_pid) for uuid, item in on_disk.items()}
        try:
            readings = await self._observation.look(views, taken, pods, shares, places, claimed)
        except HungError as error:
            self._note(str(error))
            return
        self._note("")
        wall = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        judgement = self._findings.judge(readings, {uuid: item.share for uuid, item in taken.items()}, wall)
        terminating = [share.name for share in shares.values() if share.terminates]
        self._enforcer.act(judgement, terminating)

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self._told:
            LOG.warning("the processes on the GPUs are not known: %s", trouble)
        self._told = trouble
