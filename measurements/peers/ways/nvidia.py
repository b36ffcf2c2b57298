"""NVIDIA's device plugin with `sharing.timeSlicing` or `sharing.mps`, by its Helm chart and NVIDIA's container runtime.

What differs from its documentation: the image (`image.py`), no feature discovery, so that the node's labels are set
here, and no change of the compute mode.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare.agent.gpus.driver import EXECUTABLES, control_program_dir
from localcluster.kubectl import Object
from measurements.peers.build import PROGRAMS, origin_of
from measurements.peers.rehearsal import driver, nvml
from measurements.peers.ways import chart, image
from measurements.peers.ways.processes import daemon_in
from measurements.peers.ways.way import CHANGED_CLIENTS, MPS_VARIABLES, Clients, Daemon, Gpus, Part, Promise, Way
from tests.cluster.harness import NODE, Harness, Tenant, wait_until
from tests.cluster.rights.runtime_class import offer_runtime_class

RESOURCE = "nvidia.com/gpu"
RELEASE = "nvidia-device-plugin"
CONFIG_LABEL = "nvidia.com/device-plugin.config"
LABELS = {"nvidia.com/gpu.present": "true"}
MPS_LABELS = {"nvidia.com/mps.capable": "true"}
TOOLS = ("mount", "umount", "tail")
"""What the programs start: `mount` for the daemon's /dev/shm, `tail` for its log."""
STAND_INS = {"usr/local/bin/nvidia-smi": image.no_compute_mode("/usr/bin/nvidia-smi")}
OFFER_SECONDS = 90
PATCHED = {
    "image": "NVIDIA's programs on this machine's own C library and shell: no registry can be reached",
    "compute mode": "`nvidia-smi -c` does nothing: the lent GPU stays in mode Default, not EXCLUSIVE_PROCESS",
    "labels": "set by hand: nvidia.com/gpu.present, and nvidia.com/mps.capable for MPS (feature discovery is off)",
}


class NvidiaPlugin:
    """`sharing`: as in the plugin's configuration, `mps` or `timeSlicing`. `peer`: the unpacked folder."""

    namespace, standard, variables = RELEASE, "restricted", MPS_VARIABLES

    def __init__(self, harness: Harness, peer: Path, sharing: str, gpus: Gpus) -> None:
        self._harness, self._peer, self._sharing, self._gpus = harness, peer, sharing, gpus
        self._under_mps = sharing == "mps"
        self.name = "nvidia-mps" if self._under_mps else "nvidia-time-slicing"
        self.parts = frozenset(Part) if self._under_mps else frozenset({Part.NODE_AGENT, Part.LIMITS, Part.NAMESPACES})

    @property
    def promise(self) -> Promise:
        if not self._under_mps:
            return Promise(None, None)
        clients = self._gpus.clients
        return Promise(100 // clients, self._gpus.memory_mib // clients << 20)

    def install(self) -> dict[str, Any]:
        simulated = self._harness.stack.simulated
        if simulated:
            driver.begin(self._harness)
        made = STAND_INS | (nvml.files(self._gpus.count) if simulated else {})
        name = image.load(self._harness, "nvidia-device-plugin", _programs(self._peer / "bin"), TOOLS, made)
        offer_runtime_class(self._harness, simulated)
        config = {CONFIG_LABEL: _config_of(self._gpus.clients)}
        label(self._harness, LABELS | (MPS_LABELS if self._under_mps else {}) | config)
        self._install_chart(name)
        self._wait_offered(self._gpus.clients)
        return origin_of(self._peer) | {"patched": PATCHED | (nvml.PATCHED if simulated else {})}

    def uninstall(self, _: Way) -> None:
        self._harness.stack.helm("uninstall", RELEASE, "--namespace", RELEASE, "--ignore-not-found", "--wait")
        if self._harness.stack.simulated:
            driver.end(self._harness)
        label(self._harness, dict.fromkeys((*LABELS, *MPS_LABELS, CONFIG_LABEL)))

    def prepare(self, tenant: Tenant) -> None:
        """Every namespace may ask for the resource."""

    def hold(self, tenant: Clients) -> None:
        """The daemon is there before its clients."""

    def adapted(self, pod: Object) -> Object:
        pod["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "1"}}
        pod["spec"]["runtimeClassName"] = "nvidia"
        return pod

    def offered(self) -> int | None:
        return self._harness.allocatable(RESOURCE)

    def offer(self, clients: int) -> None:
        label(self._harness, {CONFIG_LABEL: _config_of(clients)})
        self._wait_offered(clients)

    def daemon(self) -> Daemon | None:
        if not self._under_mps:
            return None
        return daemon_in(self._harness)

    def restart(self, part: Part) -> None:
        """The chart gives both DaemonSets' pods the same labels: their names tell them apart."""
        pods = self._harness.kubectl.within(self.namespace).items("pods")
        names = [pod["metadata"]["name"] for pod in pods]
        of_daemon = [name for name in names if "mps-control-daemon" in name]
        chosen = of_daemon if part is Part.DAEMON_POD else [name for name in names if name not in of_daemon]
        self._harness.kubectl.within(self.namespace).delete("pods", *chosen, wait=False)

    def _install_chart(self, name: str) -> None:
        repository, _, tag = name.rpartition(":")
        configs = {_config_of(n): self._config(n) for n in (CHANGED_CLIENTS, self._gpus.clients)}
        values = {
            "image": {"repository": repository, "tag": tag},
            "runtimeClassName": "nvidia",
            "config": {"default": _config_of(self._gpus.clients), "map": configs},
        }
        chart.install(self._harness, RELEASE, self._peer / "chart", values, wait=True)

    def _config(self, clients: int) -> str:
        resources = [{"name": RESOURCE, "replicas": clients}]
        return json.dumps({"version": "v1", "sharing": {self._sharing: {"resources": resources}}})

    def _wait_offered(self, clients: int) -> None:
        places = self._gpus.count * clients
        wait_until(f"{places} of {RESOURCE}", lambda: self.offered() == places, OFFER_SECONDS, self.offered)


def label(harness: Harness, labels: Mapping[str, str | None]) -> None:
    """Labels of the node. None: without it."""
    words = [f"{key}-" if value is None else f"{key}={value}" for key, value in labels.items()]
    harness.kubectl("label", "node", NODE, "--overwrite", *words)


def _programs(built: Path) -> dict[str, Path]:
    programs = {f"/usr/bin/{name}": built / name for name in PROGRAMS}
    if driver := control_program_dir(Path("/")):
        # In their own place: a machine may have scripts in /usr/bin that start them, and NVIDIA's runtime mounts those.
        programs |= {f"{driver}/{name}": driver / name for name in EXECUTABLES}
    return programs


def _config_of(clients: int) -> str:
    return f"clients-{clients}"
