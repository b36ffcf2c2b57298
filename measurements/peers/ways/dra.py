"""NVIDIA's DRA driver with MPS, by its Helm chart: all pods of a namespace share one claim of the GPU.

What differs from its documentation: the image (`image.py`), the driver root (`driver_root.py`), the node's label, which
is set here, and no change of the compute mode.

The claim's configuration is that of all who share it, and cannot be changed. The MPS daemon starts when the first of
its pods does, and ends after the last: so no two namespaces have the GPU at once.
"""

import shutil
from pathlib import Path
from typing import Any

from localcluster.errors import LocalClusterError
from localcluster.kubectl import Object
from localcluster.paths import cache_root
from localcluster.programs.build import NVIDIA
from measurements.peers.build import DRA_PROGRAM, origin_of
from measurements.peers.ways import chart, driver_root, image
from measurements.peers.ways.nvidia import LABELS, label
from measurements.peers.ways.processes import daemon_in
from measurements.peers.ways.way import CLIENTS, IDLE, MPS_VARIABLES, NAMESPACES, Clients, Daemon, Part, Promise, Way
from tests.cluster.claims import with_claim
from tests.cluster.harness import Harness, Tenant, wait_until

RELEASE, DRIVER = "dra-driver-nvidia-gpu", "gpu.nvidia.com"
MACHINE = Path("/")
"""The root of the machine, where the driver is."""
DRIVER_ROOT = "/run/nvidia/driver"
"""The driver's directory on the node: where NVIDIA's GPU Operator puts the driver, too."""
HOOK = "nvidia-cdi-hook"
TOOLS = (
    "bash", "mount", "umount", "ln", "find", "date", "head", "env", "basename", "ls", "sleep", "rm", "cat", "tail",
)  # fmt: skip
"""What its chart, its scripts and its program start."""
CLAIM, HOLDER, DAEMON_PODS = "gpu", "holder", "mps-control-daemon-"
OFFER_SECONDS, TURN_SECONDS, HOLD_SECONDS = 60, 90, 60
PATCHED = {
    "image": "NVIDIA's programs on this machine's own C library and tools, and the `nvidia-cdi-hook` of NVIDIA's "
    "container toolkit 1.20.1: no registry can be reached",
    "driver root": f"`{DRIVER_ROOT}` has the machine's CUDA and NVML libraries, MPS' programs and nvidia-smi, and no "
    "shell: the driver looks for them in fixed folders, where this machine need not have them",
    "compute mode": "`nvidia-smi -c` does nothing: the lent GPU stays in mode Default, not EXCLUSIVE_PROCESS",
    "label": "set by hand: nvidia.com/gpu.present (feature discovery is off)",
}


class NvidiaDra:
    """`peer`: the unpacked folder. In a rehearsal without a driver its installation ends with what it says of that."""

    name, namespace, standard, variables = "nvidia-dra", RELEASE, "restricted", MPS_VARIABLES
    parts = frozenset(Part) - {Part.LIMITS, Part.NAMESPACES}

    def __init__(self, harness: Harness, peer: Path, memory_mib: int) -> None:
        self._harness, self._peer, self._memory_mib = harness, peer, memory_mib

    @property
    def promise(self) -> Promise:
        return Promise(100 // CLIENTS, self._memory_mib // CLIENTS << 20)

    def install(self) -> dict[str, Any]:
        folder = self._harness.in_node(DRIVER_ROOT)
        folder.parent.mkdir(exist_ok=True)
        has_driver = driver_root.make(MACHINE, folder)
        name = self._image()
        label(self._harness, LABELS)
        chart.install(self._harness, RELEASE, self._peer / "chart", values(name), wait=has_driver)
        if not has_driver:
            words = chart.last_words(self._harness, RELEASE, "init-container")
            raise LocalClusterError(f"chart and image were accepted, but this machine has no driver: {words}")
        wait_until("the GPU in a ResourceSlice", self._offers, OFFER_SECONDS)
        how = "helm install with gpuResourcesEnabledOverride=true, resources.computeDomains.enabled=false, "
        gate = f"featureGates.MPSSupport=true, nvidiaDriverRoot={DRIVER_ROOT}"
        return origin_of(self._peer) | {"installed": how + gate, "patched": PATCHED}

    def uninstall(self, _: Way) -> None:
        """The driver must be there until the last claim is given back: only then it ends its MPS daemon. Its
        ResourceSlices outlast it for a while, and tell gpushare that the GPU is not free."""
        wait_until("the claims are given back", lambda: not self._taken(), TURN_SECONDS, self._taken)
        self._harness.stack.helm("uninstall", RELEASE, "--namespace", RELEASE, "--ignore-not-found", "--wait")
        if names := [item["metadata"]["name"] for item in self._slices()]:
            self._harness.kubectl.delete("resourceslices", *names)
        shutil.rmtree(self._harness.in_node(DRIVER_ROOT), ignore_errors=True)
        label(self._harness, dict.fromkeys(LABELS))

    def prepare(self, tenant: Tenant) -> None:
        """The namespace's claim. What other namespaces have left must be gone first."""
        wait_until("the GPU is free", lambda: not self._taken(), TURN_SECONDS, self._taken)
        tenant.kubectl.create(claim(self.promise))

    def adapted(self, pod: Object) -> Object:
        return with_claim(pod, resourceClaimName=CLAIM)

    def hold(self, tenant: Clients) -> None:
        """Holds the GPU by a pod that has the claim and does not use it: the daemon starts with the first one."""
        tenant.start(tenant.pod(HOLDER, command=IDLE))
        wait_until("the MPS daemon", lambda: bool(tenant.running()), HOLD_SECONDS, lambda: tenant.explain(HOLDER))

    def offered(self) -> int | None:
        """It offers the GPU, and counts no clients."""
        return None

    def offer(self, clients: int) -> None:
        raise LocalClusterError(f"{self.name} has no number of clients to set to {clients}")

    def daemon(self) -> Daemon | None:
        return daemon_in(self._harness)

    def restart(self, part: Part) -> None:
        """There is no pod of the daemon where nobody has a claim."""
        within = self._harness.kubectl.within(self.namespace)
        names = [pod["metadata"]["name"] for pod in within.items("pods")]
        chosen = [name for name in names if name.startswith(DAEMON_PODS) == (part is Part.DAEMON_POD)]
        if chosen:
            within.delete("pods", *chosen, wait=False)

    def _image(self) -> str:
        hook = NVIDIA.entry(cache_root()) / HOOK
        programs = {f"/usr/bin/{DRA_PROGRAM}": self._peer / "bin" / DRA_PROGRAM, f"/usr/bin/{HOOK}": hook}
        folder = self._peer / "image"
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return image.load(self._harness, "nvidia-dra-driver", programs, TOOLS, files)

    def _offers(self) -> bool:
        return any(item["spec"].get("devices") for item in self._slices())

    def _slices(self) -> list[Object]:
        return [item for item in self._harness.kubectl.items("resourceslices") if item["spec"]["driver"] == DRIVER]

    def _taken(self) -> list[str]:
        """Those who have taken the GPU: claims in use, and the daemon of one that no longer is."""
        claims = self._harness.kubectl.items("resourceclaims", "--all-namespaces")
        ours = [claim for claim in claims if claim["metadata"]["namespace"].startswith(f"{NAMESPACES}-")]
        taken = [
            f"{claim['metadata']['namespace']}/{CLAIM}" for claim in ours if claim.get("status", {}).get("allocation")
        ]
        return taken + ([f"an MPS daemon: {daemon}"] if (daemon := self.daemon()) else [])


def values(name: str) -> dict[str, Any]:
    """Values of the chart. `name`: the name of the image."""
    repository, _, tag = name.rpartition(":")
    return {
        "image": {"repository": repository, "tag": tag},
        "nvidiaDriverRoot": DRIVER_ROOT,
        "gpuResourcesEnabledOverride": True,
        "resources": {"computeDomains": {"enabled": False}},
        "featureGates": {"MPSSupport": True},
    }


def claim(promise: Promise) -> Object:
    """A claim of one GPU, whose clients get at most that."""
    memory = f"{(promise.memory or 0) >> 20}Mi"
    limits = {"defaultActiveThreadPercentage": promise.threads, "defaultPinnedDeviceMemoryLimit": memory}
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "MPS", "mpsConfig": limits},
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": CLAIM},
        "spec": {
            "devices": {
                "requests": [{"name": CLAIM, "exactly": {"deviceClassName": DRIVER}}],
                "config": [{"requests": [CLAIM], "opaque": {"driver": DRIVER, "parameters": parameters}}],
            }
        },
    }
