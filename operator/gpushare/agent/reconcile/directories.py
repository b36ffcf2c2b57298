"""The directories of the GPUs taken, as they were read last.

The tick alone reads them again, so that all that a turn looks at is of one moment.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpushare.agent.podresources.holdings import ContainerName, ShareGpu, WholeNames
from gpushare.agent.reconcile import daemon_files, whole_gpus
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.whole_gpus import WholeGpu
from gpushare.api.gpunode import Uuid
from gpushare.mps.files import ModelFiles
from gpushare.mps.wire import GpuGrants


class GpuDirectories:
    """`shared`: the GPUs taken that are shared, each with an MPS daemon. `whole`: those that are given whole."""

    def __init__(self, root: Path, files: ModelFiles) -> None:
        """Reads at once: departures are guarded from the start, while the first readings of GPUs and kubelet take
        seconds. `files`: what was read of the GPUs' directories, for all that read there.
        """
        self.root = root
        self.shared: Mapping[Uuid, DaemonFiles] = {}
        self.whole: Mapping[Uuid, WholeGpu] = {}
        self._files = files
        with suppress(OSError):  # the first tick says so
            self.shared = daemon_files.read_all(root, files)

    @property
    def whole_names(self) -> WholeNames:
        return _names(self.whole)

    def read(self) -> None:
        """OSError: what was read before stays."""
        self.shared = daemon_files.read_all(self.root, self._files)
        self.whole = whole_gpus.read_all(self.root, self._files)

    def read_whole_names(self) -> WholeNames:
        """The names of now, for a reading of the kubelet. OSError."""
        return _names(whole_gpus.read_all(self.root, self._files))

    def granted(self) -> dict[ContainerName, ShareGpu]:
        """Where each container has its part by grants.json, which an agent leaves to its successor."""
        granted: dict[ContainerName, ShareGpu] = {}
        for uuid, item in self.shared.items():
            grants = self._files.read(item.directory.grants, GpuGrants).value
            for pod in grants.pods if grants is not None and grants.share == item.wanted.share else ():
                for container in pod.containers:
                    if container.grant is not None:
                        granted[pod.namespace, pod.name, container.name] = (item.wanted.share, uuid)
        return granted


def _names(whole: Mapping[Uuid, WholeGpu]) -> WholeNames:
    return {(gpu.resource, uuid): gpu.share for uuid, gpu in whole.items()}
