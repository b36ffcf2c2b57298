"""Containers of two pods, and the devices that they hold."""

from typing import Any

from gpushare.agent.podresources.holdings import ContainerName, HeldDevice

APP: ContainerName = ("ml", "x", "app")
TOOL: ContainerName = ("ml", "x", "tool")
OTHER: ContainerName = ("web", "y", "app")


def held(whose: ContainerName, device_id: str, resource: str = "gpushare.dev/a") -> HeldDevice:
    return HeldDevice(*whose, resource, device_id)


def pod(whose: ContainerName, phase: str = "Running") -> dict[str, Any]:
    namespace, name, _ = whose
    return {"metadata": {"namespace": namespace, "name": name, "uid": f"uid-{name}"}, "status": {"phase": phase}}


READING = [
    held(APP, "GPU-1::0"),
    held(OTHER, "GPU-1::7"),
    held(TOOL, "GPU-2::1", "gpushare.dev/b"),
    held(APP, "eth1", "example.com/nic"),
    held(("gpushare", "mps", "mps"), "mps-0", "internal.gpushare.dev/mps"),
    held(TOOL, "of another release"),
]
TWICE = [held(APP, "GPU-1::0"), held(OTHER, "GPU-1::0")]
PODS = [pod(APP), pod(OTHER)]
