"""A cluster's addresses and interface, derived from a small index so that clusters on one machine do not collide.

Index i of 0..63 takes the veth `gpushare<i>`, 10.199.i.0/30 between machine and node, pods in 10.244.2i.0/23 and
Services in 10.96.4i.0/22. All are reachable from the machine, none from outside of it.
"""

import hashlib
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

from localcluster.errors import LocalClusterError

CLUSTERS_MAX = 64


@dataclass(frozen=True)
class Network:
    """The addresses of the cluster with this index."""

    index: int

    @property
    def interface(self) -> str:
        """The machine's end of the veth; the node's end is eth0."""
        return f"gpushare{self.index}"

    @property
    def host_ip(self) -> str:
        return f"10.199.{self.index}.1"

    @property
    def node_ip(self) -> str:
        return f"10.199.{self.index}.2"

    @property
    def pods(self) -> str:
        """CIDR with 509 addresses: for 250 pods and as many that are ending."""
        return str(ipaddress.ip_network((f"10.244.{2 * self.index}.0", 23)))

    @property
    def services(self) -> str:
        """CIDR."""
        return str(ipaddress.ip_network((f"10.96.{4 * self.index}.0", 22)))

    @property
    def apiserver_service_ip(self) -> str:
        """The first Service address, which is that of `kubernetes.default`."""
        return str(ipaddress.ip_network(self.services)[1])

    @property
    def server(self) -> str:
        return f"https://{self.node_ip}:6443"


def choose(name: str, taken: Collection[str]) -> Network:
    """The network for a new cluster. A name always gets the same index, unless its interface is in `taken`.

    Raises LocalClusterError when all indexes are taken.
    """
    first = int(hashlib.sha256(name.encode()).hexdigest(), 16)
    for step in range(CLUSTERS_MAX):
        network = Network((first + step) % CLUSTERS_MAX)
        if network.interface not in taken:
            return network
    raise LocalClusterError(f"{CLUSTERS_MAX} clusters exist on this machine: end one with `down --name NAME`")
