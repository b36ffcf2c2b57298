"""A Lease (coordination.k8s.io/v1) as a value: who holds it, since when and for how long. Pure."""

from dataclasses import dataclass

from gpushare.kube.resources import LEASES, Object

LEASE_API_VERSION = f"{LEASES.group}/{LEASES.version}"


@dataclass(frozen=True, slots=True)
class LeaseSpec:
    """`holder`: empty when the Lease was given back. `acquired`, `renewed`: MicroTime as the API has it."""

    holder: str
    lease_seconds: float
    acquired: str
    renewed: str
    transitions: int

    @classmethod
    def of(cls, lease: Object) -> "LeaseSpec":
        spec = lease.get("spec") or {}
        return cls(
            holder=spec.get("holderIdentity") or "",
            lease_seconds=float(spec.get("leaseDurationSeconds") or 0),
            acquired=spec.get("acquireTime") or "",
            renewed=spec.get("renewTime") or "",
            transitions=int(spec.get("leaseTransitions") or 0),
        )

    def wire(self) -> Object:
        """The spec of the Lease as Kubernetes stores it."""
        return {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": max(1, round(self.lease_seconds)),
            "acquireTime": self.acquired,
            "renewTime": self.renewed,
            "leaseTransitions": self.transitions,
        }
