"""What a way's own pods and MPS daemons have written, to understand a failure: afterwards both may be gone."""

from collections.abc import Sequence

from localcluster.kubectl import CommandError, Kubectl
from tests.cluster.harness import Harness

FOLDERS = ("run/nvidia/mps", "run/peers-mps", "var/lib/kubelet/plugins/gpu.nvidia.com/mps")
"""Folders of the node with logs of daemons: of NVIDIA's plugin, of one started by hand, and of NVIDIA's DRA driver."""
LOG_BYTES = 6000
EVERYWHERE = "--all-namespaces"


def of_way(harness: Harness, namespace: str) -> str:
    """`namespace`: of the way's pods. Claims and events are those of the whole cluster."""
    within = harness.kubectl.within(namespace)
    asked = [
        ("get", "pods", "--output=wide"),
        ("get", "resourceslices,resourceclaims", EVERYWHERE),
        ("get", "events", EVERYWHERE, "--sort-by=.metadata.creationTimestamp"),
    ]
    try:
        asked += [("logs", pod["metadata"]["name"], "--all-containers", "--tail=150") for pod in within.items("pods")]
    except CommandError as error:
        return str(error)
    return "\n".join([*(_answer(within, arguments) for arguments in asked), _of_daemons(harness)])


def _of_daemons(harness: Harness) -> str:
    """The end of each log."""
    node = harness.in_node("/")
    paths = sorted(path for folder in FOLDERS for path in (node / folder).rglob("*.log") if path.is_file())
    return "\n".join(f"== {path.relative_to(node)}\n{_end(path.read_bytes())}" for path in paths)


def _end(content: bytes) -> str:
    return content[-LOG_BYTES:].decode(errors="replace")


def _answer(within: Kubectl, arguments: Sequence[str]) -> str:
    try:
        return within(*arguments)
    except CommandError as error:
        return str(error)
