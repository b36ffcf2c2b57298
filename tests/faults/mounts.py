"""Every part has the node's directory in which points are told, and from which orders come.

The parts that mount /run/gpushare have it anyway. The others get it from the API server as their pods are made, also
those that a roll-out or `helm uninstall` makes: what they told would go with a directory of their own.
"""

from tests.cluster.changed_pods import change_pods
from tests.cluster.harness import Harness

NODE_DIRECTORY = "/run/gpushare/.faults"
NAME = "gpushare-faults"
OTHERS = ("operator", "webhook", "uninstall")
"""Components whose pods mount nothing of the node."""
VOLUME = f"""Object{{spec: Object.spec{{
  volumes: [Object.spec.volumes{{
    name: "faults", hostPath: Object.spec.volumes.hostPath{{path: "{NODE_DIRECTORY}", type: "Directory"}}}}],
  containers: object.spec.containers.map(it, Object.spec.containers{{
    name: it.name,
    volumeMounts: [Object.spec.containers.volumeMounts{{name: "faults", mountPath: "{NODE_DIRECTORY}"}}]}})}}}}"""


def mount_everywhere(harness: Harness) -> None:
    """Mounts everywhere before gpushare is installed, whose namespace has to exist."""
    path = harness.in_node(NODE_DIRECTORY)
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o1777)
    change_pods(harness, NAME, OTHERS, VOLUME, NODE_DIRECTORY)
