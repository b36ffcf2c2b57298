"""HAMi's library in front of CUDA, which is what enforces HAMi's limits: bare pods that load it before all else.

HAMi's device plugin, scheduler and webhook are no part of this. They give a pod the library, its variables and its
place by mounts of the kubelet; here volumes of the node do, so the pods' namespaces cannot be restricted.
"""

import shutil
from pathlib import Path
from typing import Any

from localcluster.kubectl import Object
from measurements.peers.build import LIBRARY, origin_of
from measurements.peers.ways.bare import BareSlices
from measurements.peers.ways.way import CLIENTS, Promise, Variables, Way
from tests.cluster.harness import Harness

DIRECTORY = "/run/peers-hami"
"""The directory on the node."""
IN_POD = f"/usr/local/vgpu/{LIBRARY}"
"""The path in a pod at which the library looks for itself."""
PRELOAD, LOCKS = "ld.so.preload", "vgpulock"
MOUNTS = {LIBRARY: IN_POD, PRELOAD: f"/etc/{PRELOAD}", LOCKS: f"/tmp/{LOCKS}"}
MEMORY, THREADS = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"
PATCHED = {
    "plugin and scheduler": "none: variables and mounts are set in each pod, as HAMi's device plugin sets them",
    "CUDA's headers": "of 13.5, from NVIDIA's wheels",
}


class HamiCore(BareSlices):
    name, standard = "hami-core", "privileged"
    variables = Variables(MEMORY, "140g", "garbage", THREADS, None)

    def __init__(self, harness: Harness, peer: Path, memory_mib: int) -> None:
        super().__init__(harness)
        self._peer, self._memory_mib = peer, memory_mib
        self.promise = Promise(100 // CLIENTS, memory_mib // CLIENTS << 20)

    def install(self) -> dict[str, Any]:
        super().install()
        directory = self._harness.in_node(DIRECTORY)
        directory.mkdir(exist_ok=True)
        shutil.copy(self._peer / LIBRARY, directory / LIBRARY)
        (directory / PRELOAD).write_text(f"{IN_POD}\n")
        locks = directory / LOCKS
        locks.mkdir(exist_ok=True)
        locks.chmod(0o777)
        return origin_of(self._peer) | {"patched": PATCHED}

    def uninstall(self, successor: Way) -> None:
        shutil.rmtree(self._harness.in_node(DIRECTORY), ignore_errors=True)
        super().uninstall(successor)

    def adapted(self, pod: Object) -> Object:
        pod = super().adapted(pod)
        [container] = pod["spec"]["containers"]
        promised = {MEMORY: f"{self._memory_mib // CLIENTS}m", THREADS: str(self.promise.threads)}
        container["env"] = [*container["env"], *({"name": name, "value": value} for name, value in promised.items())]
        container["volumeMounts"] = [
            {"name": "hami", "mountPath": path, "subPath": name, "readOnly": name != LOCKS}
            for name, path in MOUNTS.items()
        ]
        pod["spec"]["volumes"] = [{"name": "hami", "hostPath": {"path": DIRECTORY}}]
        return pod
