"""The owner of a resource name on a node. Pure.

A kubelet has one device plugin for each name, and a later registration silently takes the place of an earlier one. So
on one node a name of whole GPUs belongs to one share: to the one that holds a GPU there under it, else to the oldest
that takes one; and to no share where another device plugin offers it. A share's own name (gpushare.dev/<share>) is
nobody else's.
"""

from collections.abc import Iterable, Mapping

from gpushare.api.gpushare import GpuShare
from gpushare.planner.selection.node_facts import RememberedNode

OTHERS = ""
"""A name in place of a share's: another device plugin."""


class ResourceNames:
    """The resource names of one snapshot. `take` keeps what a plan gives to a share."""

    def __init__(self, facts: Mapping[str, RememberedNode], shares: Iterable[GpuShare]) -> None:
        self._facts = facts
        self._resources = {share.name: share.resource for share in shares if share.whole}
        self._taken: dict[tuple[str, str], str] = {}

    def owner(self, node: str, share: GpuShare) -> str | None:
        """Who keeps `share` from offering its name on the node: another share, or OTHERS; None: nobody."""
        if not share.whole:
            return None
        facts, resource = self._facts[node], share.resource
        if resource in facts.node.allocatable and resource not in facts.node.own_resources:
            return OTHERS
        holding = [name for name in sorted(facts.held) if self._resources.get(name) == resource]
        user = next(iter(holding), None) or self._taken.get((node, resource))
        return None if user in (None, share.name) else user

    def take(self, node: str, share: GpuShare) -> None:
        if share.whole:
            self._taken.setdefault((node, share.resource), share.name)
