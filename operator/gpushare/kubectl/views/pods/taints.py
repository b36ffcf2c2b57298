"""Which taints of a node keep a pod off it. Pure."""

from collections.abc import Sequence

from gpushare.api import names
from gpushare.kube.pods import Pod, tolerates
from gpushare.kube.resources import Object
from gpushare.kubectl.views.pods.pod import PodFacts

TOLERATE = "add its key to the chart's webhook.tolerateTaints, or a toleration to the pods"
MOST_NAMED = 3
_OF_KUBERNETES = "node.kubernetes.io/"
"""Taints that say what the node's conditions say, or that it is cordoned: they come and go by themselves."""


def untolerated(node: Object, pod: Pod) -> Sequence[str]:
    """The taints, as kubectl writes them, that let no new pod like this one come; without start-up taints."""
    return [
        _written(taint)
        for taint in (node.get("spec") or {}).get("taints") or ()
        if taint.get("effect") in ("NoSchedule", "NoExecute")
        and taint["key"] not in names.STARTUP_TAINTS
        and not taint["key"].startswith(_OF_KUBERNETES)
        and not tolerates(pod, taint)
    ]


def kept_off(facts: PodFacts, shares: Sequence[str]) -> str:
    """The taints that keep the pod off every node where its shares have GPUs; empty: none, or not off all."""
    wanted = set(shares)
    own = {node.name for node in facts.nodes if wanted & {assigned.share for assigned in node.spec.assignments or ()}}
    taints = {
        node["metadata"]["name"]: untolerated(node, facts.pod)
        for node in facts.tainted
        if node["metadata"]["name"] in own
    }
    if not taints or not all(taints.values()):
        return ""
    return "; ".join(
        f"{name} has the taint {', '.join(listed)}, which it does not tolerate"
        for name, listed in list(taints.items())[:MOST_NAMED]
    )


def _written(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"
