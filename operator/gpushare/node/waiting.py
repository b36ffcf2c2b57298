"""What waits for clients on this node, since when and for whom, as the sentence of a condition. Pure."""

from collections.abc import Collection, Iterable, Mapping

from gpushare.api.gpunode import MAX_PODS, Assignment, ShareName, Uuid

PodNames = Mapping[tuple[ShareName, Uuid], Collection[str]]


def what_waits(assignments: Iterable[Assignment], pods: PodNames) -> str:
    """Empty when nothing waits. `pods`: namespace/name of those that hold slots."""
    waiting = sorted((item for item in assignments if item.waiting_since is not None), key=lambda item: item.uuid)
    return "; ".join(_sentence(item, pods.get((item.share, item.uuid), ())) for item in waiting)


def _sentence(item: Assignment, pods: Collection[str]) -> str:
    change = "to leave it" if item.draining else "for a new MPS pod"
    whom = f"for {named(pods)}" if pods else "for nobody any more: the change is being made"
    end = "; maxWait is over, so its clients are being ended" if item.end_clients else ""
    return f"GPU {item.uuid} of GpuShare {item.share} waits {change} since {item.waiting_since}, {whom}{end}"


def named(pods: Collection[str], most: int = MAX_PODS) -> str:
    """Such as `pod ml/a` or `pods ml/a, ml/b and 3 more`."""
    listed = sorted(pods)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return f"pod{'' if len(listed) == 1 else 's'} {', '.join(listed[:most])}{more}"
