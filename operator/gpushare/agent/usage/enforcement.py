"""What follows of findings: events with both figures and, where the share says Terminate, the end of the offender.

Guarantees: an MPS client is ended through its daemon alone, so that its neighbours go on, and never by a signal: one in
the middle of a kernel would take them along, and after the daemon's `0` it computes no more. A process past MPS is
signalled only where it belongs to a container with a slot of the share, the daemon does not know it as a client, and
the MPS clients of its container were ended before.
Processes of the host, and of pods without a slot, are told and never touched. GPUs do not hold up one another.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from gpushare.agent.termination.terminate import ClientTerminator, TerminationCause
from gpushare.agent.usage.bypass import MpsClientList, NonMpsProcesses
from gpushare.agent.usage.usage import Listed
from gpushare.agent.usage.violations import ConfirmedViolation, Judgement, whose
from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Finding, ShareName, Uuid
from gpushare.kube.client import Object
from gpushare.kube.event_recorder import Event

LOG = logging.getLogger(__name__)


class EventSink(Protocol):
    """What is asked of gpushare.kube.event_recorder.Announcer."""

    def tell(self, news: Event) -> None: ...

    def over(self, regarding: Object, reason: EventReason, subject: str = "") -> None: ...


class ViolationEnforcer:
    def __init__(
        self,
        node: str,
        endings: ClientTerminator,
        control: Callable[[Uuid], MpsClientList],
        teller: EventSink,
        clock: Callable[[], float],
        proc: Path = Path("/proc"),
    ) -> None:
        """`control`: the control program of a GPU's daemon. `clock`: seconds, monotonic."""
        self._node = node
        self._endings = endings
        self._teller = teller
        self._strays = NonMpsProcesses(control, clock, proc)
        self._under_way: dict[Uuid, asyncio.Task[None]] = {}
        self._trouble: dict[Uuid, str] = {}

    def ended(self, uuid: Uuid, process: Listed) -> bool:
        return self._endings.asked(uuid, process)

    def act(self, judgement: Judgement, terminating: Collection[ShareName]) -> None:
        for finding in judgement.gone:
            self._teller.over(self._regarding(finding), EventReason(finding.reason), _subject(finding))
        doomed: dict[Uuid, list[ConfirmedViolation]] = {}
        for standing in judgement.standing:
            self._tell_finding(standing.finding)
            if standing.culprits and standing.finding.share in terminating:
                doomed.setdefault(standing.finding.uuid, []).append(standing)
        for uuid, standings in doomed.items():
            if uuid not in self._under_way:
                ending = self._end(uuid, standings)
                self._under_way[uuid] = asyncio.create_task(ending, name=f"enforcement on {uuid}")

    async def _end(self, uuid: Uuid, standings: list[ConfirmedViolation]) -> None:
        try:
            for standing in standings:
                if standing.offence.reason is EventReason.NOT_AN_MPS_CLIENT:
                    trouble = await self._end_strays(uuid, standing)
                else:
                    trouble = await self._end_clients(uuid, standing, standing.culprits)
                self._note(uuid, trouble)
        finally:
            del self._under_way[uuid]

    async def _end_clients(self, uuid: Uuid, standing: ConfirmedViolation, clients: Sequence[Listed]) -> str:
        ended, trouble = await self._endings.end(uuid, clients, TerminationCause.ENFORCEMENT)
        for process in ended:
            text = (
                f"Ended the CUDA contexts of process {process.pid} ({whose(standing.offence.usage)}) on GPU {uuid} "
                f"through its MPS daemon, as GpuShare {standing.finding.share} says (enforcement: Terminate): "
                f"{standing.finding.message}. The other clients go on; the process gets CUDA error 810."
            )
            self._tell_end(standing, process, EventReason.CLIENT_TERMINATED, "TerminateClient", text)
        return trouble

    async def _end_strays(self, uuid: Uuid, standing: ConfirmedViolation) -> str:
        """After the MPS clients of its container: with its main process, all of them would be killed in mid-kernel."""
        companions = standing.offence.companions
        trouble = await self._end_clients(uuid, standing, companions)
        if not all(self._endings.asked(uuid, process) for process in companions):
            return trouble
        sent, trouble = await self._strays.end(uuid, standing.culprits)
        for process, signal_name in sent:
            text = (
                f"Sent {signal_name} to process {process.pid} ({whose(standing.offence.usage)}), as GpuShare "
                f"{standing.finding.share} says (enforcement: Terminate): {standing.finding.message}."
            )
            self._tell_end(standing, process, EventReason.PROCESS_ENDED, "EndProcess", text)
        return trouble

    def _tell_finding(self, finding: Finding) -> None:
        self._teller.tell(
            Event(
                self._regarding(finding),
                "Warning",
                EventReason(finding.reason),
                "Observe",
                finding.message,
                subject=_subject(finding),
                key=f"{finding.granted}",
            )
        )

    def _tell_end(
        self, standing: ConfirmedViolation, process: Listed, reason: EventReason, action: str, text: str
    ) -> None:
        subject = f"{process.pid}/{process.started}"
        self._teller.tell(
            Event(self._regarding(standing.finding), "Warning", reason, action, text, subject, happened=True)
        )

    def _regarding(self, finding: Finding) -> Object:
        """The pod, or this node's GpuNode where there is none to tell."""
        if not finding.pod:
            return {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": self._node}
        uid = {"uid": finding.pod_uid} if finding.pod_uid else {}
        return {"apiVersion": "v1", "kind": "Pod", "namespace": finding.namespace, "name": finding.pod, **uid}

    def _note(self, uuid: Uuid, trouble: str) -> None:
        if trouble and trouble != self._trouble.get(uuid):
            LOG.warning("offenders on GPU %s are not ended yet, trying again: %s", uuid, trouble)
        self._trouble[uuid] = trouble


def _subject(finding: Finding) -> str:
    return finding.container or f"{finding.uuid}/{finding.pid}"
