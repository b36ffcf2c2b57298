"""The files of one cluster, and the names that processes inside and outside of it share."""

import json
from dataclasses import dataclass
from pathlib import Path

from localcluster.cluster.network import Network
from localcluster.paths import cache_root, require_own, state_dir
from localcluster.programs.build import Binaries, binaries, kubernetes_minor

NODE_NAME = "node1"
CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")


@dataclass(frozen=True)
class Layout:
    """One cluster: its name, state directory, network and programs."""

    name: str
    state: Path
    network: Network
    programs: Binaries

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def conf(self) -> Path:
        return self.state / "conf"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def kubelet(self) -> Path:
        """/var/lib/kubelet of the node."""
        return self.state / "kubelet"

    @property
    def containerd_socket(self) -> Path:
        return self.state / "containerd.sock"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "admin.kubeconfig"

    @property
    def tools(self) -> Path:
        """Programs of the repository for whoever uses the cluster: kubectl's plugin."""
        return self.state / "bin"

    @property
    def cgroup(self) -> str:
        """The cgroup, below the root of every hierarchy, that holds the cluster's pods."""
        return f"gpushare-{self.name}"

    @property
    def private(self) -> list[Path]:
        """Directories with keys, settings, and what pods and components log: nobody else on the machine reads them."""
        return [self.pki, self.conf, self.logs, self.state / "podlogs"]

    def make_directories(self) -> None:
        """All of `private`, and those that containers have to pass through, who may have UIDs of their own."""
        for directory in self.private:
            directory.mkdir(mode=0o700)
        for directory in (self.conf / "cni", self.kubelet, self.state / "containerd"):
            directory.mkdir()


def save(layout: Layout) -> None:
    """Records the chosen network and Kubernetes, for `load` by later commands and by the node."""
    network = layout.network
    record = {
        "name": layout.name,
        "index": network.index,
        "versions": network.versions,
        "kubernetes": kubernetes_minor(),
    }
    (layout.state / "cluster.json").write_text(json.dumps(record))


def load(name: str) -> Layout | None:
    """The existing cluster of this name, or None. Raises LocalClusterError where the state may be another user's."""
    state = state_dir(name)
    require_own(state.parent)
    record = state / "cluster.json"
    if not record.exists():
        return None
    known = json.loads(record.read_text())
    network = Network(known["index"], tuple(known.get("versions", (4,))))
    return Layout(name, state, network, binaries(cache_root(), known.get("kubernetes", "")))
