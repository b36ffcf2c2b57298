"""The namespace and the share that a command is asked about, checked while the command asks for other things."""

import argparse
from collections.abc import Callable

from gpushare.kube.resources import GPU_SHARES, NAMESPACES, KubeError
from gpushare.kubectl.cluster import Cluster, optional
from gpushare.kubectl.failures import require, unknown


def chosen_namespace(cluster: Cluster, args: argparse.Namespace) -> Callable[[], str | None]:
    """Asks at once; the call waits for the answer: the namespace, None for all.

    It raises WrongInputError for one that was named and does not exist; where the user may not look, it is believed.
    """
    if getattr(args, "all_namespaces", False):
        return lambda: None
    if not args.namespace:
        context = cluster.namespace()
        return lambda: context.result()
    name: str = args.namespace
    asked = cluster.find(NAMESPACES, name)

    def answer() -> str:
        try:
            if asked.result() is not None:
                return name
        except KubeError:
            return name
        known = optional(cluster.items(NAMESPACES))
        raise unknown("namespace", name, None if known is None else [listed["metadata"]["name"] for listed in known])

    return answer


def require_share(cluster: Cluster, share: str | None) -> Callable[[], None]:
    """Asks at once; the call raises WrongInputError for a GpuShare that does not exist."""
    if share is None:
        return lambda: None
    name = share
    shares = cluster.items(GPU_SHARES)

    def answer() -> None:
        known = optional(shares)
        if known is not None:
            require("GpuShare", name, [listed["metadata"]["name"] for listed in known])

    return answer
