"""The heartbeat of an agent: a Lease per node, as the kubelet has one. Pure.

It is in gpushare's own namespace, has the node's name, and is deleted with the node's GpuNode, which owns it. The agent
renews it, the operator sees when it changed. Its times are by the agent's clock: they are shown, and never compared
with another clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpushare.api import names
from gpushare.api.timestamps import format_timestamp
from gpushare.kube.cache.store import version_of
from gpushare.kube.coordination.lease import LEASE_API_VERSION, LeaseSpec
from gpushare.kube.resources import Object

RENEW_SECONDS = 10.0
LEASE_SECONDS = 40.0
"""The kubelet's own two figures: three renewals may be missed."""
LABELS = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "agent"}
SELECTOR = ",".join(f"{key}={value}" for key, value in LABELS.items())
LONGEST_TIME, LONGEST_NAME = 40, 253
"""What is shown of a Lease, which a node may fill with anything."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """What one reading of a Lease says. `version`: its resourceVersion. `time`: of the renewal, by the agent's clock.

    `holder`: the agent's pod.
    """

    version: int
    time: str
    holder: str


def heartbeat_spec(pod: str, now: datetime) -> Object:
    """The Lease's spec at a renewal by the agent's `pod`."""
    time = format_timestamp(now, micro=True)
    return {"holderIdentity": pod, "leaseDurationSeconds": round(LEASE_SECONDS), "renewTime": time}


def heartbeat_lease(node: str, gpu_node: Object, spec: Object) -> Object:
    """The Lease to create. `gpu_node`: the GpuNode that it goes with."""
    owner = {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": node, "uid": gpu_node["metadata"]["uid"]}
    return {
        "apiVersion": LEASE_API_VERSION,
        "kind": "Lease",
        "metadata": {"name": node, "labels": LABELS, "ownerReferences": [owner]},
        "spec": spec,
    }


def renewals(leases: Iterable[Object]) -> dict[str, Renewal]:
    """The renewals by node. A Lease that was never renewed is left out."""
    by_node = {}
    for lease in leases:
        spec = LeaseSpec.of(lease)
        if spec.renewed:
            by_node[lease["metadata"]["name"]] = Renewal(
                version_of(lease), spec.renewed[:LONGEST_TIME], spec.holder[:LONGEST_NAME]
            )
    return by_node
