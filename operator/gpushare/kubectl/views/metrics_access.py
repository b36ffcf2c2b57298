"""Whether the API server reaches the agents' metrics, which `top`, `trial`, `recommend` and the page read through it.

The chart's NetworkPolicy opens their port to `metrics.from`. API servers have no labels to select them by, and their
addresses are known in the cluster alone, so the value that lets them in is told here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

from gpushare.kube.resources import Object


@dataclass(frozen=True, slots=True)
class MetricsAccess:
    """What was seen of one agent. `problem`: why it was not reached; empty: it was. `policy`: the NetworkPolicy of the
    agents, and `slices` the EndpointSlices of the API server, as far as they may be read.
    """

    node: str
    problem: str = ""
    policy: Object | None = None
    slices: Sequence[Object] = ()

    def missing(self, port: int) -> str:
        """The chart's value that would let the API server in; empty: nothing shows that the policy is the cause."""
        rules = _rules(self.policy, port)
        if not rules or any("from" not in rule for rule in rules):
            return ""
        peers = [peer for rule in rules for peer in rule["from"] if not _is_page(peer)]
        outside = [address for address in _addresses(self.slices) if not _is_within(address, peers)]
        if not outside:
            return ""
        blocks = [{"ipBlock": {"cidr": str(ip_network(address))}} for address in outside]
        return f"metrics.from={json.dumps([*peers, *blocks], separators=(',', ':'))}"


def _rules(policy: Object | None, port: int) -> list[Mapping[str, Any]]:
    ingress = ((policy or {}).get("spec") or {}).get("ingress") or ()
    return [rule for rule in ingress if any(opened.get("port") == port for opened in rule.get("ports") or ())]


def _is_page(peer: Mapping[str, Any]) -> bool:
    """The chart's own rule for the page, which is not of `metrics.from`."""
    labels = (peer.get("podSelector") or {}).get("matchLabels") or {}
    return labels.get("app.kubernetes.io/component") == "ui"


def _addresses(slices: Iterable[Object]) -> list[str]:
    found = {
        address for part in slices for end in part.get("endpoints") or () for address in end.get("addresses") or ()
    }
    return sorted(found)


def _is_within(address: str, peers: Iterable[Mapping[str, Any]]) -> bool:
    blocks = [peer["ipBlock"]["cidr"] for peer in peers if "ipBlock" in peer]
    return any(ip_address(address) in ip_network(block, strict=False) for block in blocks)
