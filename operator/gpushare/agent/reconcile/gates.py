"""Opens and closes the gate of each GPU, its CDI spec, as its daemon was found.

Guarantees: a gate that cannot be opened or closed holds up no other.
"""

import logging
from collections.abc import Mapping

from gpushare.agent.gpus import cdi
from gpushare.agent.gpus.devices import Devices
from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.gpus.view import GpuView
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.decision import GpuAssessment
from gpushare.api.gpunode import Uuid
from gpushare.messages.log_on_change import LogOnChange

LOG = logging.getLogger(__name__)


class Gates:
    def __init__(self, gate: cdi.Gate, devices: Devices) -> None:
        self._gate = gate
        self._devices = devices
        self._problems = LogOnChange(LOG)

    def apply(self, assessed: Mapping[Uuid, GpuAssessment], views: Mapping[Uuid, GpuView]) -> dict[Uuid, str]:
        """Opens the gates of the GPUs that take clients, and closes all others. Why one could not be, by GPU."""
        passable = {
            uuid: views[uuid]
            for uuid, item in assessed.items()
            if self._devices.by_cdi and item.readiness.takes_clients and uuid in views
        }
        problems = {}
        for uuid in self._known_gates(assessed) | passable.keys():
            try:
                if uuid in passable:
                    self._gate.open(uuid, cdi.spec(uuid, self._edits(assessed[uuid], passable[uuid])))
                else:
                    self._gate.close(uuid)
                self._problems.clear(uuid)
            except OSError as error:
                self._problems.log("CDI spec of GPU %s: %s", uuid, error, key=uuid)
                problems[uuid] = f"its CDI spec cannot be changed: {error}"
        return problems

    def _edits(self, item: GpuAssessment, view: GpuView) -> ContainerEdits:
        """OSError: the front libraries, by which a container sees its grant or has a class, cannot be delivered."""
        if isinstance(item.taken, DaemonFiles):
            shown = {"shows_grant": item.plan.shows_grant, "has_classes": item.plan.has_classes}
            return self._devices.client(view, item.taken.directory.attach, **shown)
        return self._devices.whole([view])

    def _known_gates(self, assessed: Mapping[Uuid, GpuAssessment]) -> set[Uuid]:
        """The GPUs that have a spec. Where the directory cannot be read, all that may: each gets the error as its
        problem.
        """
        try:
            known = self._gate.uuids()
        except OSError as error:
            self._problems.log("the CDI specs cannot be read: %s", error, key=None)
            return set(assessed)
        self._problems.clear(None)
        return known
