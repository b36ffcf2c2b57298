"""What a pod or claim is judged by, gathered before anything is decided."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpushare.api.gpushare import GpuShare


@dataclass(frozen=True, slots=True)
class AdmissionData:
    namespace: str
    """The namespace of the pod or claim."""
    namespace_labels: Mapping[str, str]
    shares: Mapping[str, GpuShare]
    """By name: those that are asked for, as far as they exist."""
    share_names: Collection[str]
    """Every share there is, to suggest one for a name that is none."""
    own_namespace: str
    """Where gpushare itself runs."""
    claims: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By their name in a pod's spec.resourceClaims: the specs of its claims, where they or their templates exist."""
