"""What a pod is judged by, gathered before anything is decided."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpushare.api.gpushare import GpuShare


@dataclass(frozen=True, slots=True)
class World:
    namespace: str
    """The pod's namespace."""
    namespace_labels: Mapping[str, str]
    shares: Mapping[str, GpuShare]
    """By name: those that the pod asks for, as far as they exist."""
    share_names: Collection[str]
    """Every share there is, to suggest one for a name that is none."""
    own_namespace: str
    """Where gpushare itself runs."""
