"""What one node's agent is told at its start."""

from dataclasses import dataclass
from pathlib import Path

from gpushare.api import names
from gpushare.api.gpunode import ComputeModes


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Paths are the host's, mounted at the same place here, except `driver_mount`."""

    node: str
    pod: str
    """Name of the agent's own pod, for events."""
    root: Path = Path(names.RUN_DIR)
    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    cdi: str = "Auto"
    compute_modes: ComputeModes = ComputeModes.MANAGE
    driver_root: str = "/"
    """Where the host has the driver: / or, with a driver container, /run/nvidia/driver."""
    driver_mount: Path = Path("/driver-root")
    """Where this process sees `driver_root`."""
    status_seconds: float = 10.0
    """Between two writes of the status that are not urgent."""
    clear_seconds: float = 10.0
    """A finding is cleared when its violation was not seen for so long: use that swings about the limit is one finding.
    """
    probe_port: int = 8082
    metrics_port: int = 0
    """0: no metrics."""
    simulation_dir: str | None = None
    """Directory of the simulated GPUs; None: real ones."""

    @property
    def pod_resources(self) -> Path:
        return self.kubelet_dir / "pod-resources/kubelet.sock"
