"""The state of NVIDIA's GPU Operator that replaces a node's driver, by the labels that it writes. Pure.

To unload the driver nobody may have it open: neither clients, nor MPS daemons, nor the node agent, which asks NVML. So
while a driver is to be replaced (`leaving`), every GPU of the node leaves its share, as it would by the share's own
spec: no new client comes, and those that run are waited for, up to the share's `maxWait`. When nothing of a share is
left on the node, the agent leaves it too (`FleetPlan.without_agent`), and all come back with the new driver.

The states are those of NVIDIA's k8s-operator-libs (pkg/upgrade/consts.go), the label of clients and its value those of
k8s-driver-manager (cmd/driver-manager/main.go), both read in November 2026.
"""

from collections.abc import Mapping

STATE_LABEL = "nvidia.com/gpu-driver-upgrade-state"
CLIENT_LABEL = "nvidia.com/gpu.deploy.client"
"""This label is not there unless an administrator has put it on the node; then it says whether GPU clients may be
there."""
PAUSED = "paused-for-driver-upgrade"
IDLE_STATES = ("", "uncordon-required", "upgrade-done")
"""No GPU is taken in any other: the GPU Operator validates the new driver by programs of its own first."""
LEAVING_STATES = (
    "cordon-required",
    "wait-for-jobs-required",
    "pod-deletion-required",
    "drain-required",
    "node-maintenance-required",
    "post-maintenance-required",
    "pod-restart-required",
)
"""The states from the node's turn until the new driver runs. Before (`upgrade-required`) a node may wait for hours
while others have their turn, and after a failure (`upgrade-failed`) somebody has to look: in both the old driver
goes on."""


def upgrade(labels: Mapping[str, str]) -> str | None:
    """The label that says that the driver is being replaced, or is about to be, as `key=value`; else None."""
    if _is_paused(labels):
        return f"{CLIENT_LABEL}={labels[CLIENT_LABEL]}"
    state = labels.get(STATE_LABEL, "")
    return None if state in IDLE_STATES else f"{STATE_LABEL}={state}"


def leaving(labels: Mapping[str, str]) -> bool:
    """Tells whether the driver is to be let go of."""
    return _is_paused(labels) or labels.get(STATE_LABEL) in LEAVING_STATES


def _is_paused(labels: Mapping[str, str]) -> bool:
    return PAUSED in labels.get(CLIENT_LABEL, "")
