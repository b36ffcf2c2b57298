"""Clusters on one machine get addresses that do not collide and stay the same."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.cluster.network import CLUSTERS_MAX, FAMILIES, Network, choose, wanted_families
from localcluster.errors import LocalClusterError

indexes = st.integers(0, CLUSTERS_MAX - 1)


families = st.sampled_from(sorted(FAMILIES.values()))
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


def subnets(network: Network) -> list[IpNetwork]:
    return [
        ipaddress.ip_network(subnet, strict=False)
        for part in network.subnets
        for subnet in (f"{part.host}/{part.prefix}", part.pods, part.services)
    ]


@given(indexes, indexes, families)
def test_two_clusters_never_share_an_address(first: int, second: int, versions: tuple[int, ...]) -> None:
    if first != second:
        pairs = [(a, b) for a in subnets(Network(first, versions)) for b in subnets(Network(second, versions))]
        assert not any(a.version == b.version and a.overlaps(b) for a, b in pairs)  # type: ignore[arg-type]


@given(indexes, families)
def test_a_cluster_fits_250_pods_beside_250_that_are_ending(index: int, versions: tuple[int, ...]) -> None:
    for part in Network(index, versions).subnets:
        assert ipaddress.ip_network(part.pods).num_addresses - 3 >= 500


@given(indexes)
def test_an_interface_name_is_short_enough_for_the_kernel(index: int) -> None:
    assert len(Network(index).interface) <= 15


@given(indexes, families)
def test_both_ends_of_the_veth_are_usable_addresses_of_its_subnet(index: int, versions: tuple[int, ...]) -> None:
    for part in Network(index, versions).subnets:
        hosts = ipaddress.ip_network(f"{part.host}/{part.prefix}", strict=False).hosts()
        assert [str(next(hosts)), str(next(hosts))] == [part.host, part.node]


@pytest.mark.parametrize(
    ("setting", "server"),
    [
        ("", "https://10.199.3.2:6443"),
        ("IPv4,IPv6", "https://10.199.3.2:6443"),
        ("IPv6", "https://[fd67:7075:1:3::2]:6443"),
        ("IPv6,IPv4", "https://[fd67:7075:1:3::2]:6443"),
    ],
)
def test_the_first_family_is_the_clusters_own(setting: str, server: str) -> None:
    assert Network(3, wanted_families({"GPUSHARE_FAMILIES": setting})).server == server


def test_a_family_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(LocalClusterError, match=r"GPUSHARE_FAMILIES='dual': it is one of IPv4, IPv6, IPv4,IPv6"):
        wanted_families({"GPUSHARE_FAMILIES": "dual"})


def test_a_name_gets_the_same_network_each_time() -> None:
    assert choose("dev", set()) == choose("dev", set())


def test_a_taken_network_is_left_alone() -> None:
    first = choose("dev", set())
    assert choose("dev", {first.interface}) != first


def test_the_last_free_network_is_found() -> None:
    last = choose("dev", {Network(index).interface for index in range(CLUSTERS_MAX) if index != 7})
    assert last.index == 7


def test_too_many_clusters_are_refused() -> None:
    with pytest.raises(LocalClusterError, match="64 clusters"):
        choose("dev", {Network(index).interface for index in range(CLUSTERS_MAX)})
