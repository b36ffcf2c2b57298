"""A cluster's addresses and interface, derived from a small index so that clusters on one machine do not collide.

Index i of 0..63 takes the veth `gpushare<i>`. Of IPv4 it has 10.199.i.0/30 between machine and node, pods in
10.244.2i.0/23 and Services in 10.96.4i.0/22; of IPv6 the same in fd67:7075:1:i::/112, fd67:7075:2:i::/112 and
fd67:7075:3:i::/112. All are reachable from the machine, none from outside of it.
"""

import hashlib
import ipaddress
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from localcluster.errors import LocalClusterError

CLUSTERS_MAX = 64
FAMILIES_SETTING = "GPUSHARE_FAMILIES"
FAMILIES = {"IPv4": (4,), "IPv6": (6,), "IPv4,IPv6": (4, 6), "IPv6,IPv4": (6, 4)}
"""IP versions by what the setting says; the first one is the cluster's own, as of a Service of one family."""


@dataclass(frozen=True)
class Subnets:
    """What a cluster has of one IP version. `host`, `node`: the veth's ends, in a network of `prefix` bits. `pods`,
    `services`: CIDRs; 509 pods at least: 250 and as many that are ending."""

    version: int
    host: str
    node: str
    prefix: int
    pods: str
    services: str

    @property
    def apiserver_service_ip(self) -> str:
        """The first Service address, which is that of `kubernetes.default`."""
        return str(ipaddress.ip_network(self.services)[1])


@dataclass(frozen=True)
class Network:
    """The addresses of the cluster with this index, in one or two families; the first one is its own."""

    index: int
    versions: tuple[int, ...] = (4,)

    @property
    def interface(self) -> str:
        """The machine's end of the veth; the node's end is eth0."""
        return f"gpushare{self.index}"

    @property
    def subnets(self) -> list[Subnets]:
        return [self._of_ipv4() if version == 4 else self._of_ipv6() for version in self.versions]

    @property
    def host_ip(self) -> str:
        return self.subnets[0].host

    @property
    def node_ip(self) -> str:
        return self.subnets[0].node

    @property
    def any_address(self) -> str:
        """Where a server listens that is to be reached by each family."""
        return "::" if 6 in self.versions else "0.0.0.0"  # noqa: S104 - of a private network namespace

    @property
    def server(self) -> str:
        host = f"[{self.node_ip}]" if ":" in self.node_ip else self.node_ip
        return f"https://{host}:6443"

    def _of_ipv4(self) -> Subnets:
        pods = str(ipaddress.ip_network((f"10.244.{2 * self.index}.0", 23)))
        services = str(ipaddress.ip_network((f"10.96.{4 * self.index}.0", 22)))
        return Subnets(4, f"10.199.{self.index}.1", f"10.199.{self.index}.2", 30, pods, services)

    def _of_ipv6(self) -> Subnets:
        between, pods, services = (f"fd67:7075:{part}:{self.index:x}::" for part in (1, 2, 3))
        return Subnets(6, f"{between}1", f"{between}2", 112, f"{pods}/112", f"{services}/112")


def at_once(subnets: Subnets) -> list[str]:
    """Words for `ip address add`: nobody else is in this network, so an address of IPv6 is not asked for first."""
    return ["nodad"] if subnets.version == 6 else []


def choose(name: str, taken: Collection[str], versions: tuple[int, ...] = (4,)) -> Network:
    """The network for a new cluster. A name always gets the same index, unless its interface is in `taken`.

    Raises LocalClusterError when all indexes are taken.
    """
    first = int(hashlib.sha256(name.encode()).hexdigest(), 16)
    for step in range(CLUSTERS_MAX):
        network = Network((first + step) % CLUSTERS_MAX, versions)
        if network.interface not in taken:
            return network
    raise LocalClusterError(f"{CLUSTERS_MAX} clusters exist on this machine: end one with `down --name NAME`")


def wanted_families(environ: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Which IP versions GPUSHARE_FAMILIES asks for. Raises LocalClusterError for anything else."""
    setting = environ.get(FAMILIES_SETTING) or "IPv4"
    if setting not in FAMILIES:
        raise LocalClusterError(f"{FAMILIES_SETTING}={setting!r}: it is one of {', '.join(FAMILIES)}")
    return FAMILIES[setting]
