"""The GPUs that a share holds, node by node: what is counted of them is found once for each node. Pure.

A large fleet is mostly as it was, and the sums over its GPUs are made of the same sums over its nodes.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, TypeVar

from gpushare.api.gpunode import Limits
from gpushare.planner.gpu_record import GpuRecord
from gpushare.planner.model import NodeView

Shared = TypeVar("Shared", bound=Hashable)
LimitsKey = tuple[int, int] | None
"""(threads, MiB); None where nothing is in force. Compared a thousand times a plan, unlike a model."""


def shared(value: Shared) -> Shared:
    """One object for equal values, which most nodes have: of 1,000 nodes they would take a megabyte."""
    known: Shared = _same(value)
    return known


@lru_cache(maxsize=4096)
def _same(value: Hashable) -> Any:
    return value


def limits_key(limits: Limits | None) -> LimitsKey:
    return None if limits is None else (limits.threads, limits.memory_mib)


class NodeGpus:
    """Some GPUs of one node, at least one, by NVML index. Never changed, so a later plan may use it again."""

    def __init__(self, records: tuple[GpuRecord, ...]) -> None:
        self.records = records

    @property
    def node(self) -> NodeView:
        return self.records[0].node

    @cached_property
    def serving(self) -> bool:
        """Whether every GPU has a daemon that was reported ready."""
        return all(record.daemon is not None and record.daemon.ready for record in self.records)

    @cached_property
    def verified(self) -> int:
        return sum(record.verified for record in self.records)

    @cached_property
    def slots(self) -> int:
        """The number of slots that containers hold."""
        return sum(len(record.slots) for record in self.records)

    @cached_property
    def places(self) -> tuple[int, int]:
        """The numbers of containers that have a place, and that wait for one."""
        queued = [record.places for record in self.records if record.places is not None]
        return sum(item.used for item in queued), sum(item.waiting for item in queued)

    @cached_property
    def limits(self) -> frozenset[LimitsKey]:
        """All limits that are in force on some GPU."""
        return shared(frozenset(limits_key(record.current_limits) for record in self.records))

    @cached_property
    def reasons(self) -> frozenset[str]:
        """All reasons that daemons give for their state."""
        return shared(frozenset(record.daemon.reason for record in self.records if record.daemon is not None))

    @cached_property
    def memory_mib(self) -> int:
        """The memory of the largest GPU; 0 where the agent lists none."""
        return max(record.gpu.memory_mib if record.gpu else 0 for record in self.records)

    @cached_property
    def pre_stop(self) -> bool:
        """Whether the node mounts the program of preStop hooks, as far as its agent reports."""
        return self.node.gpu_node is not None and self.node.gpu_node.status.pre_stop_mounted

    @cached_property
    def unlisted(self) -> bool:
        """Whether there is a GPU that the agent does not list."""
        return any(record.gpu is None for record in self.records)


class HeldGpus:
    """The GPUs of one share; iterated GPU by GPU, by node and index."""

    def __init__(self, parts: Iterable[NodeGpus] = ()) -> None:
        """`parts`: by the names of their nodes; a node may come more than once."""
        self.parts = tuple(parts)

    def __iter__(self) -> Iterator[GpuRecord]:
        return chain.from_iterable(part.records for part in self.parts)

    @cached_property
    def count(self) -> int:
        return sum(len(part.records) for part in self.parts)

    def __len__(self) -> int:
        return self.count

    @cached_property
    def nodes(self) -> list[str]:
        """The nodes by name."""
        return sorted({part.node.name for part in self.parts})

    @property
    def verified(self) -> int:
        return sum(part.verified for part in self.parts)

    @property
    def slots(self) -> int:
        return sum(part.slots for part in self.parts)

    @property
    def places(self) -> tuple[int, int]:
        """As of `NodeGpus`."""
        counts = [part.places for part in self.parts]
        return sum(used for used, _ in counts), sum(waiting for _, waiting in counts)

    @property
    def memory_mib(self) -> int:
        return max((part.memory_mib for part in self.parts), default=0)

    @property
    def unlisted(self) -> bool:
        return any(part.unlisted for part in self.parts)

    @property
    def pre_stop(self) -> bool:
        """Whether every node mounts the program of preStop hooks; without a node none does."""
        return bool(self.parts) and all(part.pre_stop for part in self.parts)

    @cached_property
    def silent(self) -> "HeldGpus":
        """The GPUs whose node's agent is silent."""
        return self.where(lambda part: bool(part.node.silence))

    def where(self, some: Callable[[NodeGpus], bool], each: Callable[[GpuRecord], bool] = lambda _: True) -> "HeldGpus":
        """The GPUs for which both hold; `each` is asked only where `some` holds for the node."""
        filtered = ((part, tuple(filter(each, part.records))) for part in self.parts if some(part))
        return HeldGpus(part if len(left) == len(part.records) else NodeGpus(left) for part, left in filtered if left)
