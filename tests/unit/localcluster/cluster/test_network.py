"""Clusters on one machine get addresses that do not collide and stay the same."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.cluster.network import CLUSTERS_MAX, Network, choose
from localcluster.errors import LocalClusterError

indexes = st.integers(0, CLUSTERS_MAX - 1)


def subnets(network: Network) -> list[ipaddress.IPv4Network]:
    veth = ipaddress.IPv4Network(f"{network.host_ip}/30", strict=False)
    return [veth, ipaddress.IPv4Network(network.pods), ipaddress.IPv4Network(network.services)]


@given(indexes, indexes)
def test_two_clusters_never_share_an_address(first: int, second: int) -> None:
    if first != second:
        pairs = [(a, b) for a in subnets(Network(first)) for b in subnets(Network(second))]
        assert not any(a.overlaps(b) for a, b in pairs)


@given(indexes)
def test_a_cluster_fits_250_pods_beside_250_that_are_ending(index: int) -> None:
    pods = ipaddress.IPv4Network(Network(index).pods)
    assert pods.num_addresses - 3 >= 500


@given(indexes)
def test_an_interface_name_is_short_enough_for_the_kernel(index: int) -> None:
    assert len(Network(index).interface) <= 15


@given(indexes)
def test_both_ends_of_the_veth_are_usable_addresses_of_its_subnet(index: int) -> None:
    network = Network(index)
    hosts = [str(host) for host in subnets(network)[0].hosts()]
    assert hosts == [network.host_ip, network.node_ip]


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
