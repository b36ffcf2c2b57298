"""The node with NVIDIA's container runtime, and gpushare with an agent that gets its GPUs from it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from localcluster.cluster import nvidia_runtime
from localcluster.paths import cache_root
from localcluster.programs.build import NVIDIA
from tests.cluster.harness import Harness

CONTROL = "/dev/nvidiactl"
_OPEN = f"import os; os.open({CONTROL!r}, os.O_WRONLY)"
_RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
_GPUS = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "all", "containerEdits": {"deviceNodes": [{"path": CONTROL, "hostPath": "/dev/kmsg"}]}}],
}
"""A simulated GPU has no device node: /dev/kmsg stands for it, which containers may not open by themselves."""


@contextmanager
def unprivileged_agent(harness: Harness, install: Callable[..., object], simulated: bool) -> Iterator[None]:
    """`install`: installs gpushare with the given values of the chart, or as it was without any.

    Where GPUs are simulated, NVIDIA's runtime is given a CDI spec.
    """
    specification = harness.in_node("/etc/cdi/nvidia.json")
    if simulated:
        specification.parent.mkdir(exist_ok=True)
        specification.write_text(json.dumps(_GPUS))
    offer_runtime_class(harness, simulated)
    try:
        install("--set=agent.gpuAccess=RuntimeClass")
        yield
    finally:
        install()
        harness.kubectl.delete("runtimeclass", "nvidia")
        specification.unlink(missing_ok=True)


def offer_runtime_class(harness: Harness, simulated: bool) -> None:
    """The RuntimeClass `nvidia`. Its programs must have been built.

    On a machine with a driver NVIDIA's runtime finds the GPUs as it does by default; otherwise by the node's CDI specs.
    """
    nvidia_runtime.put(harness.layout, NVIDIA.entry(cache_root()), "cdi" if simulated else "auto")
    harness.kubectl.apply(_RUNTIME_CLASS)


def open_control(harness: Harness) -> None:
    """Opens the control device in the agent's container. Raises CommandError if its device cgroup does not admit the
    device."""
    (agent, *_) = harness.pods_of("agent")
    harness.system("exec", agent["metadata"]["name"], "--", "/opt/gpushare/bin/python3", "-c", _OPEN)
