"""What containers get of this node's GPUs, simulated or real, from the driver as it was last found."""

import logging
from collections.abc import Mapping

from gpushare.api import names
from gpushare.api.gpunode import Uuid
from gpushare.node import delivery
from gpushare.node.driver import Driver, find
from gpushare.node.edits import ContainerEdits
from gpushare.node.inventory import GpuView
from gpushare.node.lane import HungError, Lane
from gpushare.node.settings import AgentSettings

LOG = logging.getLogger(__name__)
SCAN_SECONDS = 20.0


class Devices:
    """`by_cdi`: whether Allocate names CDI devices or carries the edits itself."""

    def __init__(self, settings: AgentSettings) -> None:
        self.by_cdi = False
        self._settings = settings
        self._driver = Driver({}, {})
        self._lane = Lane("driver root", SCAN_SECONDS)

    async def scan(self) -> None:
        """Looks for the driver again: an upgrade changes its files' names."""
        if self._settings.simulation_dir is not None:
            return
        try:
            self._driver = await self._lane.call(find, self._settings.driver_root, self._settings.driver_mount)
        except (OSError, HungError) as error:
            LOG.warning("driver root %s cannot be read: %s", self._settings.driver_root, error)

    def problem(self) -> str:
        """Why no container could be given a GPU; empty when it could."""
        if self._settings.simulation_dir is not None or self._driver.libraries:
            return ""
        return f"no libcuda.so.1 below the driver root {self._settings.driver_root}: set the chart's driverRoot"

    def client(self, view: GpuView) -> ContainerEdits:
        """The edits themselves, as the CDI spec carries them."""
        client_dir = str(self._settings.root / view.info.uuid / "client")
        if self._settings.simulation_dir is not None:
            return delivery.simulated_client_edits(view.info.minor, client_dir, self._settings.simulation_dir)
        return delivery.client_edits(view.info.minor, client_dir, self._driver)

    def allocated(self, view: GpuView) -> ContainerEdits:
        """What Allocate answers for a slot of the GPU."""
        if self.by_cdi:
            return ContainerEdits(cdi_devices=(names.cdi_device(view.info.uuid),))
        return self.client(view)

    def mps(self, views: Mapping[Uuid, GpuView]) -> ContainerEdits:
        if self._settings.simulation_dir is not None:
            return delivery.simulated_mps_edits(self._settings.simulation_dir)
        return delivery.mps_edits((view.info.minor for view in views.values()), self._driver)
