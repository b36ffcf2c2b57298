"""The agent's settings, as its command line gives them."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.api import names
from gpushare.api.compute_mode import ComputeModePolicy


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds. Users cannot set them; tests shorten them."""

    tick: float = 1.0
    """A decision is taken at least this often."""
    gpus: float = 2.0
    kubelet: float = 5.0
    observe: float = 2.0
    files: float = 0.25
    """state.json and broker.json are looked at this often."""
    early: float = 1.0
    """The least time between two NVML readings that are taken early since somebody attached: who attaches without end
    costs no more.
    """
    driver: float = 60.0
    report: float = 1.0
    status: float = 10.0
    """The time between two writes of the status that are not urgent."""
    clear: float = 10.0
    """A finding is cleared when its violation was not seen for so long: use that swings about the limit is one finding.
    """
    patience: float = 15.0
    """A restarted agent waits this long for the API server before it registers with held slots alone."""
    brief: float = 5.0
    """A daemon or server that is lost is back within 3 s (measured on an H200), sooner than the scheduler hears that
    slots were withdrawn: up to 10 s later, with the kubelet's next node status. Until it hears, the kubelet fails for
    good every pod that comes; with slots still offered such a pod waits at the gate. So free slots are withdrawn only
    after an outage of this length.
    """


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Paths are the host's, mounted at the same place here, except `driver_mount`."""

    node: str
    pod: str
    """Name of the agent's own pod, for events."""
    namespace: str = "gpushare-system"
    """The namespace in which gpushare runs: the agent's Lease is there."""
    root: Path = Path(names.RUN_DIR)
    """Directory of the GPUs' directories."""
    kubelet_dir: Path = Path("/var/lib/kubelet")
    """The kubelet's --root-dir."""
    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")
    """The kubelet has this directory here whatever its --root-dir is."""
    cdi_dir: Path = Path("/var/run/cdi")
    cdi: str = "Auto"
    """Whether containers get their GPU by CDI: Auto, Always or Never."""
    compute_mode_policy: ComputeModePolicy = ComputeModePolicy.MANAGE
    driver_root: str = "/"
    """The host's path of the driver: / or, with a driver container, /run/nvidia/driver."""
    driver_mount: Path = Path("/driver-root")
    host_devices: Path = Path("/proc/1/root/dev")
    """The host's /dev, by its PID namespace: a container's own has the nodes that were there when it was created."""
    """The path by which this process sees `driver_root`."""
    probe_port: int = 8082
    metrics_port: int = 0
    """0: no metrics."""
    fronts: Path = Path(sys.prefix) / "lib/gpushare"
    """The folder of the front libraries, and of the program `pre-stop`, in this image."""
    simulation_dir: str | None = None
    """Directory of the simulated GPUs; None: real ones."""
    intervals: Intervals = field(default_factory=Intervals)

    @property
    def front_dir(self) -> Path:
        """The folder on the node: not below /run, from which some nodes map no code."""
        return self.kubelet_dir / "plugins" / names.DRA_DRIVER / "fronts"

    @property
    def pre_stop_dir(self) -> Path:
        """The folder on the node of the program `pre-stop`, beside `front_dir` for the same reason."""
        return self.kubelet_dir / "plugins" / names.DRA_DRIVER / "pre-stop"

    @property
    def pod_resources(self) -> Path:
        """Socket of the kubelet's PodResources service."""
        return self.kubelet_dir / "pod-resources/kubelet.sock"
